import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.corpora import Work, tsv
from espnet3_rules.errors import DataError, OptionError
from tests.audio_files import write_broken, write_noise


def read(path, tmp_path, **options):
    chosen = tsv.Options(splits={"test": str(path)}, **options)
    return list(tsv.cuts(chosen, "test", Work(tmp_path / "made")))


def table(tmp_path, *lines):
    path = tmp_path / "lists" / "test.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_table_with_every_column(tmp_path):
    write_noise(tmp_path / "lists" / "wav files" / 'it\'s "a".wav', 2.0, channels=2)
    absolute = write_noise(tmp_path / "b.wav", 1.0, 8000)
    path = table(
        tmp_path,
        "speaker\tid\ttext\taudio\tnotes\toffset\tduration\tchannel",
        'anna\tx/1\tgrüß dich 漢字\twav files/it\'s "a".wav\t\t0.5\t1.0\t1',
        f'\tx/2\t\t{absolute}\t"a\t\t\t',
    )
    first, second = read(path, tmp_path)
    assert (first.id, first.start, first.duration, first.channel) == ("x/1", 0.5, 1.0, 1)
    assert first.supervisions[0].text == "grüß dich 漢字" and first.supervisions[0].speaker == "anna"
    assert first.recording.sources[0].source == str(tmp_path / "lists" / "wav files" / 'it\'s "a".wav')
    assert first.load_audio().shape == (1, 16000)
    assert (second.supervisions[0].text, second.supervisions[0].speaker, second.sampling_rate) == ("", None, 8000)


def test_paths_start_from_the_table_and_come_out_absolute(tmp_path, monkeypatch):
    write_noise(tmp_path / "lists" / "a.wav")
    table(tmp_path, "id\taudio\ttext", "a\ta.wav\thello")
    monkeypatch.chdir(tmp_path)
    (cut,) = read("lists/test.tsv", tmp_path)
    assert cut.recording.sources[0].source == str(tmp_path / "lists" / "a.wav")


def test_quotes_as_programs_write_them_and_as_people_do(tmp_path):
    write_noise(tmp_path / "lists" / "a.wav")
    said = ['he said "no"', '"so," she said', '"all of it"', 'an "', "it's", '"', '""', ""]
    path = tmp_path / "lists" / "test.tsv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, "excel-tab")
        writer.writerow(["id", "audio", "text"])
        writer.writerows([f"u{i}", "a.wav", text] for i, text in enumerate(said))
    assert [c.supervisions[0].text for c in read(path, tmp_path)] == said
    # an unbalanced quote, as in Common Voice, swallows nothing
    path = table(tmp_path, "id\taudio\ttext", 'a\ta.wav\t"so, she', 'b\ta.wav\tsaid" he', 'c\ta.wav\t"a" b')
    assert [c.supervisions[0].text for c in read(path, tmp_path)] == ['"so, she', 'said" he', '"a" b']


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])).map(str.strip), min_size=1))
def test_any_fields_come_back_from_the_csv_module(fields):
    import io

    stream = io.StringIO()
    csv.writer(stream, "excel-tab", lineterminator="").writerow(fields)
    assert tsv.fields_of(stream.getvalue()) == fields


def test_every_problem_is_named_with_its_line(tmp_path):
    write_noise(tmp_path / "lists" / "a.wav")
    path = table(
        tmp_path,
        "id\taudio\ttext\toffset\tduration\tchannel",
        "a\ta.wav\tone\t\t\t",
        "a\ta.wav\ttwo\t\t\t",
        "b c\ta.wav\tthree\t\t\t",
        "d\t\tfour\t\t\t",
        "e\ta.wav\tfive",
        "f\ta.wav\tsix\t-1\t0\tleft",
        "\ta.wav\tseven\t\t\t",
    )
    with pytest.raises(DataError) as raised:
        read(path, tmp_path)
    message = str(raised.value)
    for expected in (
        f"line 3: the id 'a' is that of {path}, line 2 too",
        "line 4: the id 'b c' holds ' '",
        "line 5: utterance 'd' has no audio",
        "line 6: 3 fields, and the header has 6",
        "line 7: the offset of 'f' is '-1'",
        "line 7: the duration of 'f' is '0'",
        "line 7: the channel of 'f' is 'left'",
        "line 8: the id ''",
    ):
        assert expected in message
    assert "put a tab between fields" in raised.value.hint


def test_columns_may_be_called_otherwise(tmp_path):
    write_noise(tmp_path / "lists" / "a.wav")
    path = table(tmp_path, "path\tsentence\tclient_id", "a.wav\thello\tx")
    names = {"id": "path", "audio": "path", "text": "sentence", "speaker": "client_id"}
    with pytest.raises(OptionError, match="the same column"):
        read(path, tmp_path, columns=names)
    path = table(tmp_path, "id\tpath\tsentence\tclient_id", "u\ta.wav\thello\tx")
    names.pop("id")
    (cut,) = read(path, tmp_path, columns=names)
    assert (cut.id, cut.supervisions[0].text, cut.supervisions[0].speaker) == ("u", "hello", "x")
    with pytest.raises(OptionError, match=r"columns.txt: unknown key") as raised:
        read(path, tmp_path, columns={"txt": "sentence"})
    assert "did you mean 'text'?" in raised.value.hint


def test_a_missing_header_or_column_is_named(tmp_path):
    path = table(tmp_path, "a\ta.wav\thello")
    with pytest.raises(DataError, match="line 1: no column 'id' and no column 'audio' and no column 'text'") as raised:
        read(path, tmp_path)
    assert "columns" in raised.value.hint
    (tmp_path / "lists" / "test.tsv").write_text("")
    with pytest.raises(DataError, match="no column 'id'"):
        read(path, tmp_path)


def test_an_empty_table_is_an_empty_split(tmp_path):
    assert read(table(tmp_path, "id\taudio\ttext"), tmp_path) == []


def test_broken_audio_among_good(tmp_path, caplog):
    path = table(
        tmp_path, "id\taudio\ttext", "a\ta.wav\tone", "b\tempty.wav\ttwo", "c\ttext.wav\tthree", "d\tno.wav\t4"
    )
    write_noise(path.parent / "a.wav")
    write_broken(path.parent)
    cuts = read(path, tmp_path)
    assert [bool(c.custom) for c in cuts] == [False, True, True, True]
    assert "3 of 4 utterances" in caplog.text


def test_sources_are_what_a_change_of_means_preparing_again(tmp_path):
    path = table(tmp_path, "id\taudio\ttext")
    options = tsv.Options(splits={"test": str(path), "gone": str(tmp_path / "none.tsv")})
    assert options.sources("test") == [path] and options.sources("gone") == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("channel", "30000000"), ("channel", "1024"), ("channel", "9" * 5000), ("offset", "1e308"), ("duration", "1e10")],
)
def test_numbers_that_no_audio_has(tmp_path, column, value):
    path = table(tmp_path, f"id\taudio\ttext\t{column}", f"u7\ta.wav\thello\t{value}")
    with pytest.raises(DataError, match=f"test.tsv, line 2: the {column} of 'u7' is"):
        read(path, tmp_path)
