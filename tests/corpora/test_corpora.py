import pytest

from espnet3_rules import corpora
from espnet3_rules.corpora import tsv
from espnet3_rules.errors import OptionError


def test_options_come_from_the_block_with_or_without_its_type():
    options = corpora.corpus_options("tsv", {"type": "tsv", "splits": {"test": "a.tsv"}}, "corpora.mine")
    assert options == tsv.Options(splits={"test": "a.tsv"})
    assert list(options.splits) == ["test"]
    assert corpora.corpus_options("tsv", {"splits": {}}) == tsv.Options(splits={})


def test_an_unknown_type_names_the_nearest_and_all():
    with pytest.raises(OptionError, match=r"corpora.mine.type: no corpus type 'kaldy'") as raised:
        corpora.corpus_options("kaldy", {}, "corpora.mine")
    assert "did you mean 'kaldi'?" in raised.value.hint and "librispeech" in raised.value.hint


@pytest.mark.parametrize("kind", ["kaldi", "lhotse", "nemo", "tsv"])
def test_unknown_keys_and_missing_splits_are_refused_with_their_path(kind):
    with pytest.raises(OptionError, match=r"corpora.mine.split: unknown key") as raised:
        corpora.corpus_options(kind, {"split": {}}, "corpora.mine")
    assert "splits" in raised.value.hint
    with pytest.raises(OptionError, match=r"corpora.mine.splits: missing"):
        corpora.corpus_options(kind, {}, "corpora.mine")


@pytest.mark.parametrize("kind", corpora.CORPORA)
def test_every_type_can_be_imported_and_has_the_same_parts(kind):
    module = corpora.corpus_module(kind)
    assert callable(module.cuts) and issubclass(module.Options, corpora.Options)
