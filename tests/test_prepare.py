import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from espnet3_rules import options
from espnet3_rules.corpora import tsv
from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError
from espnet3_rules.manifest import index_path, read_index
from espnet3_rules.prepare import PrepareOptions, change_mark, mark_changed_audio, prepare, process_map
from tests.audio_files import write_broken, write_noise


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "corpus" / "test.tsv"
    for i in range(3):
        write_noise(path.parent / f"{i}.wav", 0.5 + i)
    path.write_text("id\taudio\ttext\n" + "".join(f"u{i}\t{i}.wav\ttext {i}\n" for i in range(3)))
    return path


def prepared(table, out, **chosen):
    prepare(
        corpus={"type": "tsv", "seed": 1, "splits": {"test": str(table)}},
        split="test",
        out=out,
        audio_dir=out.parent / "audio",
        options=PrepareOptions(**chosen),
    )
    return read_index(out)


def test_a_corpus_becomes_a_manifest_with_an_index(table, tmp_path, capsys):
    out = tmp_path / "data" / "mine" / "test.jsonl.gz"
    entries = prepared(table, out)
    assert [(e.id, e.duration_s, e.text) for e in entries] == [(f"u{i}", 0.5 + i, f"text {i}") for i in range(3)]
    assert [e.audio for e in entries] == [(str(table.parent / f"{i}.wav"),) for i in range(3)]
    assert "3 utterances" in capsys.readouterr().out
    assert sorted(p.name for p in out.parent.iterdir()) == ["test.index.jsonl", "test.jsonl.gz"]


@dataclasses.dataclass(frozen=True)
class Options(options.Options):
    """Of the corpus that this module is: one that tells what it was given."""

    splits: tuple[str, ...] = ("test",)

    def sources(self, split):
        return []


def cuts(chosen, split, work):
    path = write_noise(work.audio_dir / "a.wav")
    source = {"type": "file", "channels": [0], "source": str(path)}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}
    yield {"id": "a", "type": "MonoCut", "start": 0.0, "duration": 1.0, "channel": 0, "recording": recording}


def test_made_audio_is_named_in_full_wherever_the_command_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(corpus=Options(), split="test", out=Path("data/test.jsonl.gz"), audio_dir=Path("data/audio"))
    (entry,) = read_index(tmp_path / "data" / "test.jsonl.gz")
    assert entry.audio == (str(tmp_path / "data" / "audio" / "a.wav"),)


def test_options_may_be_given_instead_of_a_block(table, tmp_path):
    out = tmp_path / "test.jsonl.gz"
    prepare(corpus=tsv.Options(splits={"test": str(table)}), split="test", out=out, audio_dir=tmp_path)
    assert len(read_index(out)) == 3


def test_again_changes_nothing_and_a_corrected_text_only_itself(table, tmp_path):
    out = tmp_path / "test.jsonl.gz"
    first = prepared(table, out)
    before = [(p.stat().st_mtime_ns, p.stat().st_ino) for p in (out, index_path(out))]
    prepared(table, out)
    assert [(p.stat().st_mtime_ns, p.stat().st_ino) for p in (out, index_path(out))] == before
    table.write_text(table.read_text().replace("text 1", "Text eins"))
    second = prepared(table, out)
    assert [e.text for e in second] == ["text 0", "Text eins", "text 2"]
    assert [e.cut for e in second] == [e.cut for e in first]


def test_bad_and_missing_audio_among_good_stops_nothing(table, tmp_path, caplog):
    write_broken(table.parent)
    with table.open("a") as stream:
        stream.write("e\tempty.wav\tone\nt\ttext.wav\ttwo\nm\tmissing.wav\tthree\n")
    entries = prepared(table, tmp_path / "test.jsonl.gz")
    assert [bool(e.unreadable) for e in entries] == [False, False, False, True, True, True]
    assert all(e.duration_s > 0 for e in entries)
    assert "3 of 6 utterances" in caplog.text


def test_what_is_wrong_leaves_the_old_manifest(table, tmp_path):
    out = tmp_path / "test.jsonl.gz"
    prepared(table, out)
    before = out.read_bytes()
    with table.open("a") as stream:
        stream.write("u0\t0.wav\tagain\n")
    with pytest.raises(DataError, match="the id 'u0'"):
        prepared(table, out)
    assert out.read_bytes() == before and len(list(tmp_path.iterdir())) == 3


def test_an_empty_split_is_a_manifest(table, tmp_path):
    table.write_text("id\taudio\ttext\n")
    assert prepared(table, tmp_path / "test.jsonl.gz") == []


def test_unknown_splits_types_and_keys(table, tmp_path):
    def given(split="test", **block):
        prepare(corpus=block, split=split, out=tmp_path / "o.jsonl.gz", audio_dir=tmp_path)

    with pytest.raises(OptionError, match="no 'tset'") as raised:
        given("tset", type="tsv", splits={"test": str(table)})
    assert "did you mean 'test'?" in raised.value.hint
    with pytest.raises(OptionError, match=r"corpus.type: no corpus type 'tvs'"):
        given(type="tvs", splits={})
    with pytest.raises(OptionError, match=r"corpus.type: no corpus type ''"):
        given(splits={})
    with pytest.raises(OptionError, match=r"corpus.chanel: unknown key"):
        given(type="tsv", splits={}, chanel=1)


def test_two_at_once_do_no_harm(table, tmp_path):
    out = tmp_path / "test.jsonl.gz"
    alone = prepared(table, tmp_path / "alone.jsonl.gz")
    code = (
        "import sys; from pathlib import Path; from espnet3_rules.prepare import prepare; t, o = sys.argv[1:];"
        "prepare(corpus={'type': 'tsv', 'splits': {'test': t}}, split='test', out=Path(o), audio_dir=Path('x'))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(table), str(out)]) for _ in range(2)]
    assert [p.wait() for p in running] == [0, 0]
    assert read_index(out) == alone
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "test"))) == [
        "test.index.jsonl", "test.jsonl.gz",
    ]  # fmt: skip


def double(x):
    return 2 * x


def process_id(_):
    time.sleep(0.02)
    return os.getpid()


def die(x):
    os._exit(9) if x == 3 else None


def refuse(x):
    if x == 3:
        raise DataError("item 3", hint="mend it")
    return x


def test_process_map_keeps_the_order_and_uses_several_processes():
    with process_map(2) as parallel_map:
        assert list(parallel_map(double, iter(range(500)))) == list(range(0, 1000, 2))
        pids = set(parallel_map(process_id, range(40)))
        assert len(pids) == 2 and os.getpid() not in pids
        with pytest.raises(DataError, match="item 3") as raised:
            list(parallel_map(refuse, range(10)))
        assert raised.value.hint == "mend it"
        assert list(parallel_map(double, [])) == []
        with pytest.raises(EnvironmentProblem, match="a worker process of prepare died"):
            list(parallel_map(die, range(10)))
    with process_map(1) as parallel_map:
        assert set(parallel_map(process_id, range(3))) == {os.getpid()}


def test_workers_end_when_their_parent_is_killed():
    code = (
        "import sys; from tests.test_prepare import process_id; from espnet3_rules.prepare import process_map\n"
        "with process_map(2) as parallel_map:\n"
        "    print(*sorted(set(parallel_map(process_id, range(40)))), flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),  # noqa: PTH120
    )  # fmt: skip
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while workers and time.monotonic() < deadline:
        workers = [pid for pid in workers if alive(pid)]
        time.sleep(0.05)
    assert not workers


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:  # noqa: PTH123
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_replaced_recording_changes_the_mark_and_nothing_else_does(table, tmp_path):
    out = tmp_path / "data" / "test.jsonl.gz"
    mark = change_mark(out)
    assert mark_changed_audio(out) == []  # no manifest yet
    prepared(table, out)
    assert mark_changed_audio(out) == [] and not mark.exists()
    replaced = write_noise(table.parent / "1.wav", 1.25, seed=9)
    assert mark_changed_audio(out) == [str(replaced)]
    note, when = mark.read_text(), mark.stat().st_mtime_ns
    assert list(json.loads(note)) == [str(replaced)] and when > out.stat().st_mtime_ns
    assert mark_changed_audio(out) and mark.stat().st_mtime_ns == when  # asked twice, noted once
    assert prepared(table, out)[1].duration_s == 1.25
    assert mark_changed_audio(out) == [] and change_mark(out).read_text() == note
    write_noise(table.parent / "1.wav", 1.25, seed=10)
    mark_changed_audio(out)
    assert mark.read_text() != note


def test_threads_in_the_caller_do_not_matter():
    # a fork of a process with threads can hang; the pool must not fork
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with process_map(2) as parallel_map:
            assert list(parallel_map(double, range(4))) == [0, 2, 4, 6]
    finally:
        stop.set()
        thread.join()


def test_a_corpus_that_is_edited_meanwhile_is_refused_and_the_next_run_takes_the_new_texts(tmp_path):
    """A pipe overwrites the texts after they were read; the manifest, newer than they are, would stay for ever."""
    folder, out = tmp_path / "kaldi", tmp_path / "data" / "test.jsonl.gz"
    audio = write_noise(tmp_path / "a.wav", 0.5)
    folder.mkdir()
    (folder / "text").write_text("a old\n")
    (folder / "wav.scp").write_text(f"a echo a new words > {folder}/text; cat {audio} |\n")

    def prepared():
        prepare(
            corpus={"type": "kaldi", "splits": {"test": str(folder)}},
            split="test", out=out, audio_dir=tmp_path / "audio", options=PrepareOptions(workers=1),
        )  # fmt: skip

    with pytest.raises(DataError, match=f"changed while 'test' was prepared from it: {folder}/text") as caught:
        prepared()
    assert "same command again" in caught.value.hint
    assert not out.exists() and not index_path(out).exists()
    prepared()
    assert [entry.text for entry in read_index(out)] == ["new words"]
