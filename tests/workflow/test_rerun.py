"""What is computed again after a change: exactly what the change touches."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.recognisers import write_tones
from tests.workflow.conftest import kill_tree, wait_for

AFTER_PLAN = {"plan_shards", "decode_shard", "merge_shards", "score_hypotheses", "report", "gate", "all"}


def test_a_whole_run_then_nothing_is_to_be_done(project):
    project.run()
    scores = project.scores()
    assert scores["words"]["rate"] == 0 and scores["words"]["reference"] > 10
    assert sorted(project.decoded()) == sorted(f"utt/{n}" for n in range(10))
    hypotheses = (project.experiment() / "text").read_text().splitlines()
    assert [line.split()[0] for line in hypotheses] == [f"utt/{n}" for n in range(10)]
    assert "tones" in (project.folder / "exp/results.md").read_text()
    assert "Nothing to be done" in project.run()


def test_another_decoder_decodes_again_and_the_old_one_finds_its_journal(project):
    project.run()
    before = (project.experiment() / "hypotheses.jsonl").read_bytes()
    project.config["decoders"]["plain"] = {"method": "beam", "beam_size": 3}
    assert {"prepare_split", "plan_shards"}.isdisjoint(project.jobs())
    project.run()
    assert (project.experiment() / "hypotheses.jsonl").read_bytes() != before
    assert len(project.decoded()) == 20
    project.config["decoders"]["plain"] = {"method": "greedy"}
    project.run()
    assert len(project.decoded()) == 20
    assert (project.experiment() / "hypotheses.jsonl").read_bytes() == before


def test_a_replaced_recording_is_decoded_again_alone(project):
    project.run()
    time.sleep(0.05)
    write_tones(project.folder / "audio/t3.wav", ["la", "la", "la"])
    project.run()
    assert sorted(project.decoded()) == sorted([*(f"utt/{n}" for n in range(10)), "utt/3"])
    assert "utt/3 la la la\n" in (project.experiment() / "text").read_text()
    assert project.scores()["words"]["rate"] > 0
    assert "Nothing to be done" in project.run()


def test_a_corrected_transcript_decodes_nothing_and_changes_the_score(project):
    project.run()
    time.sleep(0.05)
    table = (project.folder / "test.tsv").read_text().replace("audio/t3.wav\t", "audio/t3.wav\tnever said ")
    (project.folder / "test.tsv").write_text(table)
    project.run()
    assert len(project.decoded()) == 10
    assert project.scores()["words"]["deletions"] == 2


def test_added_utterances_cost_only_themselves_with_another_number_of_shards(project):
    project.run()
    project.write_corpus(4, first=10)
    project.config["decode"]["shards"] = 3
    project.run()
    assert sorted(project.decoded()) == sorted(f"utt/{n}" for n in range(14))
    assert project.scores()["sentences"]["reference"] == 14


def test_quiet_keys_rerun_nothing(project):
    project.run()
    project.config["decode"] |= {"batch_duration_s": 1.0}
    project.config["trainer"] = {"log_every_n_steps": 3}
    assert project.jobs() == {}


def test_a_lost_shard_is_published_again_from_the_journal(project):
    project.run()
    (project.experiment() / "shards/1-of-2.jsonl").unlink()
    (project.experiment() / "hypotheses.jsonl").unlink()
    project.run()
    assert len(project.decoded()) == 10 and project.scores()["words"]["rate"] == 0


def test_a_misspelt_key_stops_before_anything_runs(project):
    project.config["decode"]["shard"] = 3
    printed = project.run(fails=True)
    assert "decode.shard: unknown key" in printed and "did you mean 'shards'?" in printed
    assert not (project.folder / "data").exists() and not (project.folder / "exp").exists()


def test_the_gate_fails_last_and_explains(project):
    (project.folder / "audio/t3.wav").write_bytes(b"")
    (project.folder / "audio/t4.wav").write_text("this is no audio")
    printed = project.run(fails=True)
    assert "utt/3" in printed and "utt/4" in printed and "max_failed" in printed
    scores = project.scores()
    assert scores["failed"]["count"] == 2 and scores["words"]["deletions"] > 0
    assert (project.folder / "exp/results.md").is_file()
    failed = (project.experiment() / "failed.tsv").read_text()
    assert "utt/3" in failed and "utt/4" in failed and "utt/5" not in failed
    project.config["decode"]["max_failed"] = 2
    assert {"prepare_split", "plan_shards"}.isdisjoint(project.jobs())
    project.run()


def test_failed_utterances_are_tried_again_by_the_same_command(project):
    recording = project.folder / "audio/t3.wav"
    good = recording.read_bytes()
    recording.write_bytes(b"")
    project.run(fails=True)
    before = len(project.decoded())
    assert project.run(fails=True).count("utt/3") >= 1
    assert sorted(project.decoded())[:] == sorted([*project.decoded()]) and len(project.decoded()) == before + 1
    recording.write_bytes(good)
    project.run()
    assert project.scores()["words"]["rate"] == 0
    assert project.decoded().count("utt/3") == 3 and len(project.decoded()) == before + 2
    assert "Nothing to be done" in project.run()


def test_a_given_models_files_and_version_are_part_of_the_run(project):
    (project.folder / "shout.txt").write_text("no")
    project.config["systems"]["tones"]["model"]["shout"] = "shout.txt"
    project.run()
    assert project.jobs() == {}
    time.sleep(0.05)
    (project.folder / "shout.txt").write_text("yes")
    assert project.jobs()["decode_shard"] == 2
    project.run()
    assert len(project.decoded()) == 20 and project.scores()["words"]["rate"] == 1


@pytest.mark.parametrize("target", ["tests.recognisers.ToneReeder", "tests.recogniserz.ToneReader"])
def test_a_model_that_does_not_exist_is_refused_with_its_key(project, target):
    project.config["systems"]["tones"]["model"]["_target_"] = target
    printed = project.run(fails=True)
    assert "systems.tones.model._target_" in printed and target in printed


def test_no_utterances_and_fewer_than_shards(project):
    project.write_table({0: "do", 1: "re"})
    project.config["decode"]["shards"] = 7
    project.run()
    assert sorted(project.decoded()) == ["utt/0", "utt/1"]
    time.sleep(0.05)
    project.write_table({})
    project.run()
    assert project.scores()["sentences"]["reference"] == 0


def test_after_a_failed_job_the_same_command_does_not_call_the_old_results_done(project):
    project.run()
    project.config["systems"]["tones"]["model"]["shout"] = "no-such-file.txt"
    for _ in range(2):
        assert "no-such-file.txt" in project.run(fails=True)
    del project.config["systems"]["tones"]["model"]["shout"]
    project.run()
    assert len(project.decoded()) == 10 and project.scores()["words"]["rate"] == 0


def test_killed_with_everything_it_goes_on_by_the_same_command(project):
    project.config["systems"]["tones"]["model"]["pause_s"] = 0.3
    project.config["decode"] |= {"batch_duration_s": 0.1}
    driver = project.start()
    wait_for(lambda: len(project.decoded()) >= 2, driver)
    kill_tree(driver)
    done = len(project.decoded())
    assert 2 <= done < 10
    project.run()
    assert set(project.decoded()) == {f"utt/{n}" for n in range(10)}
    assert len(project.decoded()) <= 10 + 2, "more than one batch a worker was decoded again"
    assert project.scores()["words"]["rate"] == 0


def test_a_driver_that_died_alone_leaves_its_jobs_to_the_next(project):
    project.config["systems"]["tones"]["model"]["pause_s"] = 0.3
    project.config["decode"] |= {"batch_duration_s": 0.1}
    driver = project.start()
    wait_for(lambda: len(project.decoded()) >= 1, driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    project.run()
    assert sorted(project.decoded()) == sorted(f"utt/{n}" for n in range(10)), "not each exactly once"
    assert project.scores()["words"]["rate"] == 0


def test_two_drivers_at_once_do_no_harm(project):
    project.config["systems"]["tones"]["model"]["pause_s"] = 0.1
    drivers = [project.start(), project.start()]
    assert [driver.wait(120) for driver in drivers] == [0, 0], (project.folder / "driver.log").read_text()
    assert sorted(project.decoded()) == sorted(f"utt/{n}" for n in range(10))
    assert project.scores()["words"]["rate"] == 0
