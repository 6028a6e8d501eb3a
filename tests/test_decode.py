"""Decoding: each utterance once, exactly what changed again, and nothing lost to what is broken or killed."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import time

import pytest

from espnet3_rules.batches import batches
from espnet3_rules.decode import DecodeOptions
from espnet3_rules.errors import DataError, EnvironmentProblem, IncompleteError
from espnet3_rules.shards import Row
from tests.shard_runs import TINY, TestSet, run_cli

FORK = multiprocessing.get_context("fork")  # the libraries are loaded already


@pytest.fixture
def data(tmp_path):
    return TestSet(tmp_path, 20)


def test_the_same_bytes_for_any_shards_and_batches(data):
    first = data.exp("one")
    first.run(1, batch_duration_s=1000, max_batch=1000)
    assert len(first.hypotheses()) == 20
    assert list(first.hypotheses()) == [cut["id"] for cut in data.cuts]
    for shards, seconds, most in ((2, 1000, 1), (7, 0.6, 64), (33, 5, 3)):
        other = data.exp(f"{shards}")
        other.run(shards, batch_duration_s=seconds, max_batch=most)
        assert other.merged() == first.merged()
    line = first.hypotheses()["spk0/utt0"]
    samples = data.cuts[0]["recording"]["num_samples"]
    assert line["text"].startswith(f"beam 1 length {samples} loud ")  # white space made single
    assert line["status"] == "ok" and line["score"] == round(-samples / 77, 6)
    assert "decode_s" not in line and len(line["run"]) == 32


def test_scores_may_differ_in_the_last_bits_and_nothing_else(data):
    one, many = data.exp("one"), data.exp("many")
    model = {**TINY, "noise": 1e-6}
    first, second = one.run(1, model, max_batch=1), many.run(3, model)
    assert one.merged()[1:] == many.merged()[1:]
    assert first != second
    for utt, line in first.items():
        assert (line["text"], line["status"]) == (second[utt]["text"], second[utt]["status"])
        assert line["score"] == pytest.approx(second[utt]["score"], abs=1e-4)


def test_only_what_changed_is_decoded_again(data):
    exp = data.exp()
    exp.run(2)
    assert set(exp.decoded().values()) == {1} and exp.decoded().total() == 20
    exp.run(3)  # other shards: nothing
    exp.run(1, max_batch=2, threads=1, stale_after_s=5, progress_s=1)
    assert exp.decoded().total() == 20

    data.add("spk1/utt4", 2222, 0.5)  # a recording is replaced, and a cut added
    data.cuts[4] = data.cuts.pop()
    data.add("new", 1000, 0.5)
    data.publish()
    found = exp.run(2)
    again = {utt for utt, times in exp.decoded().items() if times == 2}
    assert again == {"spk1/utt4"} and exp.decoded()["new"] == 1 and exp.decoded().total() == 22
    assert "2222" in found["spk1/utt4"]["text"] and list(found)[-1] == "new"

    wide = exp.run(2, search={"method": "beam", "beam_size": 4})
    assert exp.decoded().total() == 43 and wide["new"]["text"].startswith("beam 4")
    assert exp.run(2) == found  # back to the old beam: its journal is found
    assert exp.decoded().total() == 43
    assert len(list(exp.journal.glob("*/key.json"))) == 2


def test_a_recording_replaced_after_the_plan(data):
    exp = data.exp()
    exp.plan(1)
    time.sleep(0.01)
    data.add("spk2/utt5", 1234, 0.3)
    with pytest.raises(DataError, match=r"1 recordings were replaced after the plan.*spk2/utt5"):
        exp.decode(1, 1)
    assert exp.decoded().total() == 19 and not exp.shard(1, 1).exists()
    data.cuts[5] = data.cuts.pop()
    data.publish()
    exp.run(1)
    assert exp.decoded().total() == 20


def test_broken_audio_among_good(data):
    data.wav("spk0/utt3").write_bytes(b"")
    data.wav("spk1/utt7").write_text("This is no audio at all.\n" * 100)
    data.wav("spk2/utt8").unlink()
    data.add("short", 150, 0.5)
    data.add("flagged", 1000, 0.5)
    data.cuts[-1]["custom"] = {"unreadable": "the tape was eaten"}
    data.publish()
    exp = data.exp()
    found = exp.run(2)
    failed = {utt: line["error"] for utt, line in found.items() if line["status"] == "failed"}
    assert failed.keys() == {"spk0/utt3", "spk1/utt7", "spk2/utt8", "short", "flagged"}
    assert "0 bytes" in failed["spk0/utt3"] and "no such file" in failed["spk2/utt8"]
    assert "too short" in failed["short"] and failed["flagged"] == "the tape was eaten"
    table = [line.split("\t") for line in (exp.folder / "failed.tsv").read_text().splitlines()]
    assert [row[0] for row in table] == ["utt_id", *[c["id"] for c in data.cuts if c["id"] in failed]]
    assert f"short\t0.019\t{failed['short']}" in (exp.folder / "failed.tsv").read_text()
    assert "short\n" in (exp.folder / "text").read_text()
    assert exp.decoded().total() == 17
    exp.run(2)  # failed is not final
    assert exp.decoded().total() == 17 and set(exp.decoded("failed").values()) == {2}


def test_out_of_memory_halves_the_batch(data):
    exp = data.exp()
    longest = max(data.cuts, key=lambda cut: cut["duration"])
    memory = longest["recording"]["num_samples"] - 1
    found = exp.run(1, {**TINY, "memory": memory}, batch_duration_s=1000)
    failed = {utt for utt, line in found.items() if line["status"] == "failed"}
    assert failed == {longest["id"]} and "out of memory" in found[longest["id"]]["error"]
    whole = data.exp("whole")
    whole.run(1)
    assert all(found[u]["text"] == line["text"] for u, line in whole.hypotheses().items() if u not in failed)


def test_nothing_fits_into_memory(data):
    with pytest.raises(EnvironmentProblem, match="out of memory on each of the first 8"):
        data.exp().run(1, {**TINY, "memory": 10})


def test_an_error_of_one_utterance_and_an_error_of_all(data):
    data.add("loud", 900, 0.99)
    data.publish()
    exp = data.exp()
    found = exp.run(1, {**TINY, "fault": "loud"})
    assert found["loud"]["error"] == "ValueError: much too loud"
    assert [utt for utt, line in found.items() if line["status"] == "failed"] == ["loud"]
    other = data.exp("all")
    with pytest.raises(AttributeError, match="no such thing as a beam") as raised:
        other.run(2, {**TINY, "fault": "all"})
    assert "each of the first 8" in raised.value.__notes__[0]
    assert not other.shard(1, 2).exists()


def test_a_model_that_ends_the_process_is_an_error(data):
    exp = data.exp()
    with pytest.raises(RuntimeError, match=r"WaveText.recognise called sys.exit\(0\)"):
        exp.run(1, {**TINY, "fault": "leaves"})
    assert not exp.shard(1, 1).exists()


def test_an_empty_test_set_and_one_utterance(tmp_path):
    empty = TestSet(tmp_path / "empty", 0).exp()
    assert empty.run(3) == {}
    assert empty.merged() == [b"", b"utt_id\tduration_s\treason\n", b""]
    assert len(TestSet(tmp_path / "one", 1).exp().run(3)) == 1


def test_nothing_left_to_decode_costs_no_torch(data):
    exp = data.exp()
    exp.run(1)
    exp.shard(1, 1).unlink()
    stage = ("decode", "--manifest", data.manifest, "--plan", exp.folder / "plan", "--shard", 1, "--shards", 1)
    files = ("--journal", exp.journal, "--out", exp.shard(1, 1))
    seconds, heavy = run_cli(*stage, *files, "--model", json.dumps(TINY), "--set", "device=cpu")
    assert seconds < 0.5 and not heavy
    assert exp.shard(1, 1).exists()


def test_the_built_in_recogniser(data, tmp_path):
    """The padding of a batch changes no text, and the exported model is known by its content."""
    import torch

    from espnet3_rules.models.network import build_network
    from espnet3_rules.models.options import FeatureOptions, NetworkOptions
    from espnet3_rules.models.recogniser import export
    from espnet3_rules.tokens import TokenOptions, train_tokens

    torch.manual_seed(1)
    features = FeatureOptions(sampling_rate=8000, mel_bins=40)
    size = NetworkOptions(layers=1, width=32, heads=2, feed_forward=32, subsampling_channels=8)
    tokens = train_tokens(["one two three"], TokenOptions(kind="char"))
    network = build_network(size, tokens.vocab_size, features)
    export(tmp_path / "model", network, network_options=size, feature_options=features, tokens=tokens)
    data.add("short", 150, 0.5)
    data.publish()
    found = []
    for name, shards, most in (("a", 1, 1), ("b", 3, 8), ("c", 7, 64)):
        exp = data.exp(name)
        found.append(exp.run(shards, tmp_path / "model", max_batch=most, threads=1))
        assert exp.run(shards, tmp_path / "model") == found[-1] and exp.decoded().total() == 20
    assert sum(bool(line.get("text")) for line in found[0].values()) > 10
    for other in found[1:]:
        for utt, line in found[0].items():
            assert (other[utt]["text"], other[utt]["status"]) == (line["text"], line["status"])
            assert other[utt].get("score", 0) == pytest.approx(line.get("score", 0), abs=1e-4)
    assert found[0]["short"]["error"] == "too short for one frame of output (0.01875 s)"


def test_batches():
    rows = [Row(f"u{i}", "x", s) for i, s in enumerate([1.0, 9.0, 2.0, 2.0, 0.0, 3.0])]
    assert [[row.duration_s for row in batch] for batch in batches(rows, 6.0, 10)] == [[9], [3, 2], [2, 1, 0]]
    assert [len(batch) for batch in batches(rows, 1000, 2)] == [2, 2, 2]
    assert batches([], 1, 1) == []


# -- killed, doubled, frozen


def start(exp, shard, shards, **options):
    model = {**TINY, "sleep_s": 0.02}
    process = FORK.Process(target=exp.decode, args=(shard, shards, model), kwargs=options, daemon=True)
    process.start()
    return process


def test_killed_ten_times(tmp_path):
    """Each utterance is decoded once; a kill costs at most the batch in hands, and no claim is left behind."""
    data = TestSet(tmp_path, 60, seed=1)
    straight = data.exp("straight")
    straight.run(1, {**TINY, "sleep_s": 0.02})
    exp = data.exp()
    exp.plan(1)
    rng = random.Random(7)
    for _ in range(10):
        before = exp.decoded().total()
        process = start(exp, 1, 1, max_batch=3)
        wanted = before + rng.choice([0, 1, 1, 4])
        while exp.decoded().total() < wanted:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert 10 <= exp.decoded().total() < 60  # it gets on although it is killed
    process = start(exp, 1, 1, max_batch=3)
    process.join()
    assert process.exitcode == 0
    assert set(exp.decoded().values()) == {1} and exp.decoded().total() == 60
    exp.merge(1)
    assert straight.merged() == exp.merged()


def test_a_second_driver_while_the_first_runs(tmp_path):
    """Started again with other shards while the old jobs still run, one of which is killed: nothing twice."""
    data = TestSet(tmp_path, 60, seed=2)
    exp = data.exp()
    exp.plan(2)
    old = [start(exp, shard, 2, max_batch=2) for shard in (1, 2)]
    time.sleep(0.2)
    exp.plan(3)
    new = [start(exp, shard, 3, max_batch=4) for shard in (1, 2, 3)]
    old[0].join(0.3)
    old[0].kill()
    for process in (*old, *new):
        process.join(60)
    assert [process.exitcode for process in new] == [0, 0, 0] and old[1].exitcode == 0
    assert set(exp.decoded().values()) == {1} and exp.decoded().total() == 60
    exp.merge(3)


def test_a_frozen_worker_is_taken_over_and_publishes_nothing_when_it_wakes(tmp_path):
    data = TestSet(tmp_path, 30, seed=3)
    exp = data.exp()
    exp.plan(1)
    first = start(exp, 1, 1, max_batch=2, stale_after_s=0.9)
    while exp.decoded().total() < 4:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(0.05)
    before = exp.decoded()
    second = start(exp, 1, 1, max_batch=2, stale_after_s=0.9)
    second.join(30)
    assert second.exitcode == 0 and exp.shard(1, 1).exists()
    after = exp.decoded()
    assert before.total() < after.total() == 30
    os.kill(first.pid, signal.SIGCONT)
    first.join(30)
    assert first.exitcode == 0
    assert exp.decoded() == after and set(after.values()) == {1}


def test_killed_before_the_merge(data):
    exp = data.exp()
    exp.plan(2)
    exp.decode(1, 2)
    with pytest.raises(IncompleteError, match=r"1 shard files missing: 2-of-2.jsonl"):
        exp.merge(2)
    assert not (exp.folder / "hypotheses.jsonl").exists()


def test_a_full_disk(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        data = TestSet(tmp_path, 40)
        exp = data.exp("small/exp")
        exp.plan(1)
        filler = small / "filler"
        with pytest.raises(EnvironmentProblem, match="No space left") as raised:
            filler.write_bytes(b"x" * (os.statvfs(small).f_bavail * 4096 - 5 * 4096))
            exp.decode(1, 1, max_batch=2)
        assert "give the same command again" in str(raised.value)
        kept = exp.decoded()
        filler.unlink()
        exp.decode(1, 1, max_batch=2)
        exp.merge(1)
        assert exp.decoded().total() == 40 and set(exp.decoded().values()) == {1} and kept <= exp.decoded()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_only_the_search_can_change_a_text():
    assert DecodeOptions(max_batch=1, device="cuda:3").to_dict(only_result=True) == DecodeOptions().to_dict(
        only_result=True
    )
    assert DecodeOptions().to_dict(only_result=True).keys() == {"search"}


def test_a_worker_of_other_options_does_not_replace_newer_hypotheses(data):
    exp = data.exp()
    exp.plan(1)
    orphan = FORK.Process(target=exp.decode, args=(1, 1, {**TINY, "sleep_s": 0.1}), kwargs={"max_batch": 1})
    orphan.start()
    while not exp.decoded():
        time.sleep(0.01)
    exp.decode(1, 1, search={"method": "beam", "beam_size": 3})
    newer = exp.shard(1, 1).read_bytes()
    assert b"beam 3" in newer
    orphan.join(60)
    assert orphan.exitcode == 1, "it says that it published nothing"
    assert exp.shard(1, 1).read_bytes() == newer
