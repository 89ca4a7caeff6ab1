"""Joining, forking, importing, and works that are dropped."""

import gc
import os
import subprocess
import sys
import threading

import harness
import numpy as np
import pytest
from array_ranks import run

import kolo


def test_unique_ids():
    id = kolo.get_unique_id("127.0.0.1")
    assert len(id) == 128

    def body(rank, ranks, folder):
        with kolo.init(unique_id=id, rank=rank, world_size=ranks) as comm:
            x = np.ones(2)
            comm.all_reduce(x)
            assert np.all(x == ranks)

    harness.forked(3, body)


def test_the_environment(monkeypatch):
    def body(rank, ranks, folder):
        os.environ.update(KOLO_RENDEZVOUS=f"file://{folder}/x", KOLO_RANK=str(rank), KOLO_WORLD_SIZE=str(ranks))
        with kolo.init() as comm:
            assert (comm.rank, comm.world_size, comm.local_rank) == (rank, ranks, rank)
            assert comm.hosts == [0] * ranks
            assert "KOLO_TRANSPORT=auto" in comm.settings()
            assert {peer for peer, *_ in comm.routes()} == set(range(ranks)) - {rank}
            assert f"rank {rank} of {ranks}" in comm.summary()
            comm.barrier()
            assert "barrier" in comm.recent()[0]

    harness.forked(2, body)


def test_a_fork_cannot_use_what_its_parent_made():
    def body(comm):
        child = os.fork()
        if child == 0:
            try:
                comm.barrier()
            except kolo.Usage as error:
                right = "fork" in str(error)
                del comm
                gc.collect()
                os._exit(0 if right else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        assert status == 0
        comm.barrier()  # the parent goes on

    run(2, body)


def test_threads_wait_for_one_work():
    def body(comm):
        x = np.ones(1_000_000)
        work = comm.all_reduce_start(x)
        results = []
        threads = [threading.Thread(target=lambda: results.append(work.wait()[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [2.0] * 4

    run(2, body)


def test_each_thread_that_waits_for_one_work_has_its_own_time_out():
    def body(comm):
        if comm.rank == 1:
            with pytest.raises(kolo.Aborted):
                comm.recv(np.zeros(1), 0)  # it never comes
            return
        work, errors = comm.all_reduce_start(np.ones(4)), []

        def wait(timeout):
            try:
                work.wait(timeout)
            except kolo.Timeout as error:
                errors.append(str(error))

        first = threading.Thread(target=wait, args=(1000,))
        first.start()
        wait(0.5)
        first.join()
        assert len(errors) == 2 and all("after 0.5 s" in error for error in errors), errors

    run(2, body)


def test_a_waiting_thread_lets_others_run(tmp_path):
    flag = tmp_path / "flag"

    def body(comm):
        if comm.rank == 0:
            waiting = threading.Thread(target=comm.barrier)
            waiting.start()
            flag.touch()
            waiting.join()
        else:
            # Enters the barrier only after rank 0's main thread has run while its other thread waits.
            while not flag.exists():
                os.sched_yield()
            comm.barrier()

    run(2, body)


def test_parts_stay_in_their_place_during_a_call():
    class Sharing:
        def share(self, _comm, places):
            with pytest.raises(BufferError):
                part.append(1)
            assert [(name, length) for name, _, length in places] == [("part", 8)]
            return 8, 0, 0

    part = bytearray(8)

    def body(comm):
        state = kolo.State(comm)
        state._state = Sharing()
        assert state.share(comm, {"part": part}) == 8

    run(1, body)


def test_a_thread_that_looks_at_a_state_lets_others_run(tmp_path):
    flag = tmp_path / "flag"

    def body(comm):
        state, weights = kolo.State(comm), {"weights": np.ones(4)}
        if comm.rank == 0:
            sharing = threading.Thread(target=state.share, args=(comm, weights))
            looking = threading.Thread(target=lambda: [state.version for _ in iter(sharing.is_alive, False)])
            sharing.start()
            looking.start()
            flag.touch()
            sharing.join()
            looking.join()
        else:
            # Shares only after rank 0's main thread has run while its other threads share and look.
            while not flag.exists():
                os.sched_yield()
            state.share(comm, weights)

    run(2, body)


def test_dropped_works_are_harmless():
    def body(comm):
        for _ in range(50):
            comm.all_reduce_start(np.ones(100_000))
        comm.barrier_start().wait()

    run(2, body)


@pytest.mark.skipif(sys.platform != "linux", reason="counts on /proc")
def test_importing_is_quick_and_starts_nothing():
    program = (
        "import sys, time\n"
        # Measures processor time, because other processes may use the processor meanwhile.
        "before = time.process_time(); import kolo; took = time.process_time() - before\n"
        "import os\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "print(took * 1000)"
    )
    best = min(float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
               for _ in range(5))
    print(f"import kolo: {best:.1f} ms")
    assert best < 50
