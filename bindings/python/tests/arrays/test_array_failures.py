"""Errors are raised on every rank, with the right class and attributes."""

import os
import pickle
import signal

import harness
import numpy as np
import pytest
from array_ranks import run

import kolo


def test_mismatches_name_the_other():
    def body(comm):
        with pytest.raises(kolo.Mismatch) as caught:
            comm.all_reduce(np.ones(3 + comm.rank))
        error = caught.value
        assert (error.rank, error.peer, error.sequence) == (comm.rank, 1 - comm.rank, 1)
        assert error.operation == f"all_reduce({3 + comm.rank} x f64, sum)"
        assert f"all_reduce({4 - comm.rank} x f64, sum)" in str(error)
        with pytest.raises(kolo.Mismatch):
            comm.barrier()

    run(2, body)


@pytest.mark.parametrize("started", [False, True])
def test_time_outs_name_the_late_rank(started):
    def body(comm):
        comm.barrier()
        if comm.rank == 2:
            with pytest.raises(kolo.Error):
                comm.recv(np.empty(1), 0)  # not what the others wait for
            return
        comm.timeout = 1.0
        with pytest.raises(kolo.Error) as caught:
            x = np.ones(5)
            comm.all_reduce_start(x).wait() if started else comm.all_reduce(x)
        assert caught.value.peer == 2 or "rank 2" in str(caught.value), caught.value
        if isinstance(caught.value, kolo.Timeout):
            assert isinstance(caught.value, TimeoutError)

    run(3, body, settings={"timeout": 5})


def test_a_killed_rank_is_named():
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(kolo.PeerLost) as caught:
            for _ in range(1000):
                comm.all_reduce(np.ones(1000))
        assert caught.value.peer == 1
        assert isinstance(caught.value, ConnectionError)

    ended = run(3, body, check=False)
    assert [end.code for end in ended] == [0, -signal.SIGKILL, 0], ended


@pytest.mark.parametrize("victim", [0, 2])
def test_those_that_live_go_on(victim):
    def body(comm):
        me = comm.rank
        comm.barrier()
        if me == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        # A rank that has seen the loss may revoke the communicator before another rank has seen it.
        with pytest.raises((kolo.PeerLost, kolo.Revoked)):
            for _ in range(1000):
                comm.all_reduce(np.ones(1000))
        comm.revoke()
        left = [rank for rank in range(4) if rank != victim]
        assert comm.agree(0b1000 | me) == (0b1000, left)
        with comm.shrink() as next:
            assert (next.epoch, next.ranks_before, next.world_size) == (1, left, 3)
            x = next.all_reduce(np.full(1000, float(me)))
            assert np.all(x == sum(left))
            next.barrier()
            next.revoke()
            with pytest.raises(kolo.Revoked):
                next.barrier()
            with pytest.raises(kolo.Usage, match="below 2"):
                next.agree(-1)

    ended = run(4, body, check=False)
    assert [end.code for end in ended] == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], ended


def test_aborts_arrive_everywhere():
    def body(comm):
        if comm.rank == 0:
            comm.abort("had enough")
        with pytest.raises(kolo.Aborted, match="had enough") as caught:
            for _ in range(1_000_000):
                comm.barrier()
        assert caught.value.peer == 0

    run(3, body)


def test_a_missing_rank_is_named():
    def body(rank, ranks, folder):
        with pytest.raises(kolo.Join) as caught:
            kolo.init(f"file://{folder}/meet", rank=rank, world_size=ranks + 1, join_timeout=1)
        assert "2" in str(caught.value)

    harness.forked(2, body)


def test_bad_settings():
    for call, match in [
        (lambda: kolo.init("tcp://nowhere"), "port"),
        (lambda: kolo.init("tcp://localhost:1", rank=3, world_size=2), "rank 3 does not exist"),
        (lambda: kolo.init("file:///x", rank=0, world_size=1, transport="pigeon"), "KOLO_TRANSPORT"),
    ]:
        with pytest.raises(kolo.Configuration, match=match):
            call()
    with pytest.raises(kolo.Usage, match="128"):
        kolo.init(unique_id=b"short", rank=0, world_size=1)
    with pytest.raises(kolo.Configuration, match="not a unique id"):
        kolo.init(unique_id=bytes(128), rank=0, world_size=1)


def test_errors_survive_pickling():
    error = kolo.PeerLost("gone", rank=1, operation="x", sequence=2, peer=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kolo.PeerLost and str(again) == "gone [K0501]"
    assert (again.rank, again.operation, again.sequence, again.peer) == (1, "x", 2, 3)
    assert again.code == error.code == "K0501"
    assert str(kolo.System("full", rank=1)) == "full [K0901]"


def test_errors_have_codes(tmp_path):
    with kolo.init(f"file://{tmp_path}/meet", rank=0, world_size=1) as comm:
        # One error is found in Python, the other by the runtime.
        for call, code in [(lambda: comm.all_reduce("text"), "K0101"), (lambda: comm.broadcast(np.zeros(1), 7), "K0101")]:
            with pytest.raises(kolo.Error, match=rf" \[{code}\]$") as raised:
                call()
            assert raised.value.code == code
