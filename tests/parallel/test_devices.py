"""Device leases: never two processes on one device, and none left unused."""

import multiprocessing
import threading
import time

from espnet3_rules.parallel.devices import lease_device


def test_each_takes_another_and_the_last_one_waits(tmp_path):
    with lease_device(2, folder=tmp_path, environment={}) as one:
        with lease_device(2, folder=tmp_path, environment={}) as two:
            assert {one, two} == {0, 1}
            got = []

            def wait():
                with lease_device(2, folder=tmp_path, environment={}, poll_s=0.02) as three:
                    got.append(three)

            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join(0.2)
            assert not got
        waiting.join(5)
        assert got == [two]


def test_a_scheduler_has_shared_them_out(tmp_path):
    environment = {"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_ID": "7"}
    lease = {"folder": tmp_path, "environment": environment}
    with lease_device(1, **lease) as one, lease_device(1, **lease) as two:
        assert one == two == 0


def test_processes_that_see_different_parts_agree_on_the_names(tmp_path):
    with lease_device(4, folder=tmp_path, environment={}) as first:
        assert first == 0
        with lease_device(2, folder=tmp_path, environment={"CUDA_VISIBLE_DEVICES": "0,1"}) as second:
            assert second == 1
            with lease_device(4, folder=tmp_path, environment={}) as third:
                assert third == 2


def hold(folder, queue):
    with lease_device(1, folder=folder, environment={}) as number:
        queue.put(number)
        time.sleep(60)


def test_the_lease_of_a_killed_process_is_free(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=hold, args=(tmp_path, queue), daemon=True)
    process.start()
    assert queue.get(timeout=10) == 0
    process.kill()
    with lease_device(1, folder=tmp_path, environment={}, poll_s=0.02) as number:
        assert number == 0
    process.join()
