"""Newcomers join a running group, and get its state."""

import os
import time
from pathlib import Path

import harness
import numpy as np
import pytest
from array_ranks import run

from launchers import PROGRAMS, free_port, kolo_run, torchrun

import kolo


def invite(comm, folder):
    """Writes the invitation, and then renames it into place, since newcomers may be reading it."""
    Path(folder, "beside").write_text(comm.accept())
    os.rename(Path(folder, "beside"), Path(folder, "invitation"))


def joined(rank, ranks, folder):
    """The communicator of a member that has invited newcomers, or of a newcomer that has joined."""
    if rank >= ranks:
        return kolo.init(join=f"file://{folder}/invitation", timeout=60)
    comm = kolo.init(f"file://{folder}/meet", rank=rank, world_size=ranks, timeout=60)
    if rank == 0:
        invite(comm, folder)
    return comm


def test_newcomers_come_in_between_steps_and_get_the_state():
    def body(rank, _, folder):
        comm = joined(rank, 2, folder)
        changes = []
        state, group = kolo.State(comm), kolo.Survivors(comm, up_to=4, on_change=changes.append)
        assert (state.version is None) == (rank >= 2)
        weights, moments = np.full(200_000, -1.0 if rank >= 2 else 0.0), np.zeros((3, 5), np.float16)
        full = 0
        while full < 5:
            group.admit()

            def step(comm):
                state.share(comm, {"weights": weights, "moments": moments})
                return comm.all_reduce(np.ones(1))

            full += group.run(step)[0] == 4
            weights += 1
            moments += 1
            state.advance()
        assert np.all(weights == state.version) and np.all(moments == np.float16(state.version))
        assert group.comm.slots == [0, 1, 2, 3] and group.comm.rank == changes[-1].rank
        assert changes[-1].came[-1] == 3 and not any(change.left for change in changes)
        group.close()

    harness.forked(4, body)


def test_a_newcomer_fetches_the_state_while_the_members_go_on():
    def body(rank, _, folder):
        is_newcomer = rank == 2
        table, weights = np.full(600_000, 0.0 if is_newcomer else 3.5), np.zeros(1000)
        parts = {"table": table, "weights": weights}
        if is_newcomer:
            with pytest.raises(kolo.Join, match="no invitation"):
                kolo.State.fetched(f"file://{folder}/nowhere", parts, timeout=0)
            state = kolo.State.fetched(f"file://{folder}/invitation", parts)
            version = state.version
            assert np.all(weights == version) and np.all(table == 3.5)
        comm = joined(rank, 2, folder)
        state = state if is_newcomer else kolo.State(comm)
        group = kolo.Survivors(comm, up_to=3)
        received, offered, full = [], False, 0
        while full < 5:
            group.admit()
            offered |= state.offer(group, parts)

            def step(comm):
                received.append(state.share(comm, parts))
                return comm.all_reduce(np.ones(1))

            full += group.run(step)[0] == 3
            weights += 1
            state.advance()
        assert np.all(weights == state.version) and np.all(table == 3.5)
        assert not (offered and is_newcomer) and not state.is_offering
        if is_newcomer:
            assert received[0] == weights.nbytes and not any(received[1:]), received
            assert state.version > version + 5, "the others have gone on meanwhile"
        group.close()

    harness.forked(3, body)


def test_members_grow_and_replace_by_themselves():
    def body(rank, _, folder):
        comm = joined(rank, 2, folder)
        if rank < 2:
            with pytest.raises(kolo.Usage, match="none of the 2 slots is free"):
                comm.replace()
            with pytest.raises(kolo.Usage, match="most is 0"):
                comm.grow(0)
            while comm.all_reduce(np.array([comm.waiting]))[0] < 1:
                time.sleep(0.001)
            comm = comm.grow(3)
        assert (comm.world_size, comm.epoch, comm.ranks_before) == (3, 1, [0, 1, None])
        assert comm.all_reduce(np.ones(3))[0] == 3
        comm.close()

    harness.forked(3, body)


def test_nonsense_is_refused():
    with pytest.raises(kolo.Configuration, match="not an invitation"):
        kolo.init(join="tcp://here:1")

    def body(comm):
        state = kolo.State(comm)
        data = np.zeros((4, 4))
        for parts, match in (
            ({"a": data[:, 1]}, "not contiguous"),
            ({"a": data, "b": data[1]}, "share memory"),
            ({1: data}, "must be a str"),
            ({"a": b"bytes"}, "read-only"),
            ({"a" if comm.rank else "b": data}, "registered different parts"),
        ):
            with pytest.raises(kolo.Usage, match=match):
                state.share(comm, parts)
        assert state.share(comm, {"a": data}) == 0
        with pytest.raises(kolo.Usage, match="version is -1"):
            state.version = -1

    run(2, body)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("options", [("--elastic", "1:3"), ("--elastic", "1:3", "--spares", "1")])
def test_a_rank_that_dies_under_the_launcher_is_replaced(victim, options):
    command = kolo_run(3, *options)
    if command is None:
        pytest.skip("the program kolo has not been built")
    program = harness.python(PROGRAMS / "array_elastic.py") + [str(victim), "3"]
    [end] = harness.programs([command + program], [{}])
    assert f"kolo: rank {victim} (pid " in end.text and "restarting it as a newcomer" in end.text, end
    for rank in range(3):
        assert f"rank {rank} of 3, slots [0, 1, 2], newcomer {rank == victim}" in end.text, end


@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_replaces_one_worker(victim, tmp_path):
    pytest.importorskip("torch")
    place = ["--nnodes", "3", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    options = [*place, "--max-restarts", "1", "--monitor-interval", "0.05"]
    program = [str(PROGRAMS / "array_elastic.py"), str(victim), "3"]
    agents = [torchrun(*options, "--node-rank", str(node), *program) for node in range(3)]
    environment = {"KOLO_INVITE": str(tmp_path / "invitation"), "KOLO_ELASTIC": "1:3"}
    ended = harness.programs(agents, [environment] * 3)
    for rank, end in enumerate(ended):
        # No other rank was restarted, and the newcomer has the state.
        assert f"of 3, slots [0, 1, 2], newcomer {rank == victim}" in end.text, end
