import pytest
import torch

from espnet3_rules.models.augment import SpecAugment
from espnet3_rules.models.options import AugmentOptions


def augmented(options, lengths, seed=0, training=True):
    torch.manual_seed(5)
    features = torch.randn(len(lengths), max(lengths), 40) + 3
    for row, length in zip(features, lengths, strict=True):
        row[length:] = 0
    torch.manual_seed(seed)
    return features, SpecAugment(options).train(training)(features, torch.tensor(lengths))


def test_bands_and_stretches_within_the_utterance_are_hidden():
    options = AugmentOptions(frequency_width=8, time_width=12, time_fraction=0.2)
    before, after = augmented(options, [200, 100, 50] * 5)
    for old, new, length in zip(before, after, [200, 100, 50] * 5, strict=True):
        hidden = old[:length] != new[:length]
        times, bins = hidden.all(1), hidden.all(0)
        assert times.sum() <= 0.2 * length and bins.sum() <= 2 * 8
        assert torch.equal(hidden, times[:, None] | bins[None]) and hidden.any()
        assert not new[length:].any()
        torch.testing.assert_close(new[:length][hidden], old[:length].mean().expand(int(hidden.sum())))


def test_it_follows_torchs_seed_and_changes_nothing_outside_training():
    options = AugmentOptions()
    _, first = augmented(options, [100, 80])
    assert torch.equal(augmented(options, [100, 80])[1], first)
    assert not torch.equal(augmented(options, [100, 80], seed=1)[1], first)
    before, after = augmented(options, [100, 80], training=False)
    assert torch.equal(before, after)


@pytest.mark.parametrize("masks", [{"frequency_masks": 0}, {"time_masks": 0}, {"time_masks": 1, "frequency_masks": 1}])
def test_any_number_of_masks(masks):
    options = AugmentOptions(frequency_width=8, time_width=12, time_fraction=0.1, **masks)
    before, after = augmented(options, [100] * 30 + [1, 2, 9])
    hidden = before != after
    assert hidden.all(2).any() == bool(options.time_masks)
    assert hidden.all(1).any() == bool(options.frequency_masks)


def test_nothing_at_all():
    before, after = augmented(AugmentOptions(frequency_masks=0, time_masks=0), [100, 1])
    assert torch.equal(before, after)


def test_it_has_no_weights():
    assert not SpecAugment(AugmentOptions()).state_dict(prefix="augment.")
