import pytest

from espnet3_rules.corpora import Work, librispeech
from espnet3_rules.errors import DataError, OptionError
from tests.audio_files import write_noise


def make_part(folder, speakers):
    for speaker, chapter, texts in speakers:
        chapter_folder = folder / str(speaker) / str(chapter)
        lines = []
        for i, text in enumerate(texts):
            utt_id = f"{speaker}-{chapter}-{i:04d}"
            write_noise(chapter_folder / f"{utt_id}.flac", 0.25 + i / 8, seed=i)
            lines.append(f"{utt_id} {text}".strip() + "\n")
        (chapter_folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))


@pytest.fixture
def corpus(tmp_path):
    root = tmp_path / "LibriSpeech"
    make_part(root / "dev-clean-2", [(84, 121123, ["GO", "DO YOU HEAR"]), (8, 7, ["BUT IN LESS THAN FIVE MINUTES"])])
    make_part(root / "train-clean-5", [(1088, 134315, ["AS I SPOKE"])])
    return root


def read(folder, split, tmp_path, **options):
    chosen = librispeech.Options(folder=str(folder), **options)
    return list(librispeech.cuts(chosen, split, Work(tmp_path / "made")))


def test_the_parts_are_lhotses():
    from lhotse.recipes.librispeech import LIBRISPEECH, MINI_LIBRISPEECH

    assert sorted(librispeech.PARTS) == sorted(LIBRISPEECH + MINI_LIBRISPEECH)


def test_cuts_are_those_of_lhotses_recipe(corpus, tmp_path):
    from lhotse.recipes.librispeech import prepare_librispeech

    cuts = read(corpus, "dev-clean-2", tmp_path)
    expected = prepare_librispeech(corpus, dataset_parts=["dev-clean-2"])["dev-clean-2"]
    assert [c.id for c in cuts] == ["8-7-0000", "84-121123-0000", "84-121123-0001"]
    assert sorted(c.id for c in cuts) == sorted(s.id for s in expected["supervisions"])
    for cut in cuts:
        assert cut.recording == expected["recordings"][cut.id]
        assert cut.supervisions == [expected["supervisions"][cut.id]]


def test_a_split_of_several_parts_and_a_folder_above(corpus, tmp_path):
    cuts = read(tmp_path, "all", tmp_path, splits={"all": ["train-clean-5", "dev-clean-2"], "valid": "dev-clean-2"})
    assert [c.id.split("-")[0] for c in cuts] == ["1088", "8", "84", "84"]
    options = librispeech.Options(folder=str(tmp_path))
    assert "test-other" in options.splits and len(options.sources("dev-clean-2")) == 2


def test_what_the_recipe_would_lose_or_stop_at_is_kept(corpus, tmp_path, caplog):
    part = corpus / "dev-clean-2" / "84" / "121123"
    (part / "84-121123-0000.flac").unlink()
    (part / "84-121123-0001.flac").write_bytes(b"")
    transcript = part / "84-121123.trans.txt"
    transcript.write_text("84-121123-0000\n84-121123-0001 DO YOU HEAR\n")
    cuts = read(corpus, "dev-clean-2", tmp_path)
    assert [bool(c.custom) for c in cuts] == [False, True, True]
    assert cuts[1].supervisions[0].text == "" and "2 of 3 utterances" in caplog.text
    transcript.write_text("84-121123-0000 A\n84-121123-0000 B\n")
    with pytest.raises(
        DataError, match=r"trans.txt, line 2: the id '84-121123-0000' is that of .*trans.txt, line 1 too"
    ):
        read(corpus, "dev-clean-2", tmp_path)


def test_missing_and_misspelt_parts(corpus, tmp_path):
    with pytest.raises(DataError, match="no part 'test-clean' there, only dev-clean-2, train-clean-5") as raised:
        read(corpus, "test-clean", tmp_path)
    assert "download: true" in raised.value.hint
    with pytest.raises(OptionError, match=r"splits.test: no part 'test_clean' in LibriSpeech") as raised:
        read(corpus, "test", tmp_path, splits={"test": "test_clean"})
    assert "did you mean 'test-clean'?" in raised.value.hint


def test_a_download_comes_whole_and_touches_nothing_that_is_there(corpus, tmp_path, monkeypatch):
    import lhotse.recipes.librispeech as recipe

    asked = []

    def download(target, dataset_parts):
        # the network is what cannot be had in a test
        asked.append(dataset_parts)
        (target / "LibriSpeech").mkdir(parents=True)
        make_part(target / "LibriSpeech" / dataset_parts[0], [(61, 70968, ["HE BEGAN"])])
        (target / f"{dataset_parts[0]}.tar.gz").write_bytes(b"large")
        return target / "LibriSpeech"

    monkeypatch.setattr(recipe, "download_librispeech", download)
    assert [c.id for c in read(corpus, "test-clean", tmp_path, download=True)] == ["61-70968-0000"]
    assert len(read(corpus, "dev-clean-2", tmp_path, download=True)) == 3
    assert [c.id for c in read(corpus, "test-clean", tmp_path)] == ["61-70968-0000"]
    assert asked == [["test-clean"]] and not list(tmp_path.rglob("*.tar.gz"))
