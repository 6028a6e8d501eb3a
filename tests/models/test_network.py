import pytest
import torch

from espnet3_rules.errors import OptionError
from espnet3_rules.models.network import build_network
from espnet3_rules.models.options import FeatureOptions, NetworkOptions

FEATURES = FeatureOptions(mel_bins=16)
SMALL = NetworkOptions(layers=2, width=16, heads=2, feed_forward=32, subsampling_channels=8, dropout=0.0)


def built(options=SMALL, vocab_size=7, seed=0):
    torch.manual_seed(seed)
    return build_network(options, vocab_size, FEATURES)


def batch_of(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(lengths), max(lengths), 16, generator=generator)
    for row, length in zip(features, lengths, strict=True):
        row[length:] = 0
    return features, torch.tensor(lengths)


def trained_a_little(network):
    """So that the running statistics of the batch norms, and the biases, are not those of the start."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for step in range(5):
        logits, _ = network.train()(*batch_of([90, 70, 33], seed=step))
        logits.square().mean().sub(2).square().backward()
        optimizer.step()
        optimizer.zero_grad()
    return network.eval()


@pytest.mark.parametrize("subsampling", [2, 4, 8])
@pytest.mark.parametrize("more_padding", [0, 37])
def test_an_utterance_gives_the_same_alone_and_in_any_batch(subsampling, more_padding):
    network = trained_a_little(built(NetworkOptions(**{**SMALL.to_dict(), "subsampling": subsampling})))
    lengths = [91, 33, 32, 31, 30, 9, 5, 2, 1]
    features, counts = batch_of(lengths)
    padded = torch.nn.functional.pad(features, (0, 0, 0, more_padding))
    with torch.inference_mode():
        logits, frames = network(padded, counts)
        for row, length in enumerate(lengths):
            alone, (count,) = network(features[row : row + 1, :length], torch.tensor([length]))
            assert frames[row] == count == alone.shape[1] == -(-length // subsampling)
            torch.testing.assert_close(logits[row, :count], alone[0], atol=1e-5, rtol=0)
            assert torch.equal(logits[row, :count].argmax(-1), alone[0].argmax(-1))


def test_initial_weights_scale_with_what_a_layer_takes_in():
    """Parakeet's own are all of deviation 0.02: with them a small network hears next to nothing, and stays so."""
    for module in built(NetworkOptions()).ctc.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d):
            inputs = module.weight[0].numel()
            assert float(module.weight.detach().std()) == pytest.approx((3 * inputs) ** -0.5, rel=0.25), module


def test_a_small_network_learns_in_a_few_steps():
    torch.manual_seed(0)
    options = NetworkOptions(layers=4, width=96, feed_forward=192, subsampling_channels=32, dropout=0.0)
    network = build_network(options, 5, FEATURES)
    generator = torch.Generator().manual_seed(3)
    sounds = torch.randn(5, 16, generator=generator)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(50):
        targets = torch.randint(1, 5, (8, 4), generator=generator)
        features = sounds[targets].repeat_interleave(20, dim=1)  # (batch, frames, mel)
        features = features + 0.3 * torch.randn(features.shape, generator=generator)
        logits, frames = network(features, torch.full((8,), 80))
        loss = torch.nn.functional.ctc_loss(
            logits.log_softmax(-1).transpose(0, 1), targets, frames, torch.full((8,), 4), zero_infinity=True
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert loss < 0.5


def test_the_same_seed_gives_the_same_weights():
    first, second, other = (built(seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["ctc.ctc_head.weight"], other["ctc.ctc_head.weight"])


def test_its_shape_follows_the_options():
    network = built(NetworkOptions(**{**SMALL.to_dict(), "layers": 3}), vocab_size=11)
    logits, _ = network(*batch_of([40]))
    assert logits.shape == (1, 10, 11) and logits.dtype == torch.float32
    assert len(network.ctc.encoder.layers) == 3
    assert network.output_lengths(torch.tensor([1, 4, 5, 40])).tolist() == [1, 1, 2, 10]


def test_bfloat16_training_gives_float32_logits():
    with torch.autocast("cpu", torch.bfloat16):
        logits, _ = built()(*batch_of([40, 10]))
    assert logits.dtype == torch.float32 and torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"width": 100, "heads": 4}, "take 104"), ({"kernel": 8}, "take 9")],
)
def test_impossible_options(options, hint):
    with pytest.raises(OptionError) as caught:
        NetworkOptions(**options)
    assert caught.value.hint == hint


def test_mel_bins_that_do_not_fit_the_subsampling():
    with pytest.raises(OptionError, match="mel_bins: 18 is not a multiple of the subsampling, 4") as caught:
        build_network(SMALL, 5, FeatureOptions(mel_bins=18))
    assert caught.value.hint == "take 16 or 20"
