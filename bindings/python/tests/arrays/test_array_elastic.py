"""Reductions over shards, and steps that continue after losses."""

import asyncio
import hashlib
import os
import signal
import time

import numpy as np
import pytest
from array_ranks import run

import kolo

SHARDS = 24


def shard(number, length, dtype):
    """Numbers whose sum depends on the order of addition."""
    return (np.sin(np.arange(1, length + 1) * (number + 1)) / (1 + number)).astype(dtype)


def own(comm, shards, length, dtype):
    parts = [shard(number, length, dtype) for number in comm.own_shards(shards)]
    return np.stack(parts) if parts else np.empty((0, length), dtype)


def said(ended):
    return {end.text.strip() for end in ended}


@pytest.mark.parametrize("determinism", ["repeatable", "canonical"])
def test_the_bits_are_the_same_for_any_number_of_ranks(determinism):
    def body(comm):
        bits = hashlib.sha256()
        for shards in (1, 5, SHARDS):
            for dtype in ("float16", "float32", "float64"):
                for op in ("sum", "avg"):
                    out = np.empty(777, dtype)
                    assert comm.all_reduce_shards(own(comm, shards, 777, dtype), shards, op, out=out) is out
                    bits.update(out.tobytes())
        print(bits.hexdigest())

    seen = [said(run(ranks, body, settings={"determinism": determinism})) for ranks in (1, 2, 3, 5)]
    assert len(set.union(*seen)) == 1, seen


def test_a_new_array_is_as_long_as_a_shard():
    def body(comm):
        out = comm.all_reduce_shards(np.ones((len(comm.own_shards(8)), 3, 5), np.float32), 8)
        assert out.shape == (3, 5) and np.all(out == 8)
        flat = comm.all_reduce_shards(np.ones(len(comm.own_shards(8)) * 4), 8, "avg")
        assert flat.shape == (4,) and np.all(flat == 1)
        number = comm.all_reduce_shards(np.ones(len(comm.own_shards(8))), 8)
        assert number.shape == () and number == 8

    run(3, body)


def test_nonsense_is_refused():
    def body(comm):
        for shards, match in ((0, "0 shards"), (-1, "-1 shards"), (20_000, "20000 shards")):
            with pytest.raises(kolo.Usage, match=match):
                comm.all_reduce_shards(np.ones((len(comm.own_shards(max(shards, 1))), 2)), shards)
        with pytest.raises(kolo.Usage, match="must have"):
            comm.all_reduce_shards(np.ones(7), 4, out=np.empty(3))
        with pytest.raises(kolo.Usage, match="they must agree"):
            comm.all_reduce_shards(np.ones((2, 3)), 4, out=np.empty(3, np.float32))
        with pytest.raises(kolo.Usage, match="scale them"):
            comm.all_reduce_shards(np.ones((2, 3)), 4, "premul_sum")
        if comm.rank == 0:
            with pytest.raises(kolo.Usage, match="out must be given"):
                comm.all_reduce_shards(np.ones(0), 1)
        with pytest.raises(kolo.Usage, match="at_least is 0"):
            kolo.Survivors(comm, at_least=0)
        assert np.all(comm.all_reduce(np.ones(3)) == 2)

    run(2, body)


@pytest.mark.parametrize("victims", [(), (0,), (2, 1)])
def test_those_that_live_end_with_the_same_bits(victims):
    def body(comm):
        me = comm.rank
        state = np.zeros(500, np.float32)
        with kolo.Survivors(comm) as group:
            for step in range(60):

                def mean(comm, step=step):
                    if me in victims and step == 20 + 10 * victims.index(me):
                        os.kill(os.getpid(), signal.SIGKILL)
                    parts = [shard(number + step, 500, "float32") - state for number in comm.own_shards(SHARDS)]
                    return comm.all_reduce_shards(np.stack(parts), SHARDS, "avg")

                state += 0.1 * group.run(mean)
            assert group.comm.world_size == 4 - len(victims)
            assert np.all(group.all_reduce(np.ones(9)) == 4 - len(victims))
        print(hashlib.sha256(state.tobytes()).hexdigest())

    ended = run(4, body, check=False)
    codes = [-signal.SIGKILL if rank in victims else 0 for rank in range(4)]
    assert [end.code for end in ended] == codes, ended
    left = [end for rank, end in enumerate(ended) if rank not in victims]
    assert len(said(left)) == 1, ended
    if victims:
        alone = run(1, _alone)
        assert said(left) == said(alone), (left, alone)


def _alone(comm):
    state = np.zeros(500, np.float32)
    for step in range(60):
        parts = [shard(number + step, 500, "float32") - state for number in range(SHARDS)]
        state += 0.1 * comm.all_reduce_shards(np.stack(parts), SHARDS, "avg")
    print(hashlib.sha256(state.tobytes()).hexdigest())


def test_a_step_that_may_be_repeated_keeps_its_input():
    def body(comm):
        group = kolo.Survivors(comm)
        x = np.arange(8.0)
        for out in (x, x[::-1]):
            with pytest.raises(kolo.Usage, match="out shares memory"):
                group.all_reduce(x, out=out)
        assert np.array_equal(x, np.arange(8.0))
        assert group.all_reduce(x, out=np.empty(8))[7] == 14

    run(2, body)


def test_an_exception_of_ones_own_is_an_error_on_all():
    def body(comm):
        group = kolo.Survivors(comm)

        def step(comm):
            comm.barrier()
            if comm.rank == 1:
                raise KeyError("the program's own")
            return comm.all_reduce(np.ones(3))

        with pytest.raises(KeyError if comm.rank == 1 else kolo.Revoked):
            group.run(step)
        assert np.all(group.all_reduce(np.ones(3)) == 3), "the members go on"

    run(3, body)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_of_one_rank_does_not_hold_up_the_others(kind):
    def body(comm):
        group = kolo.Survivors(comm)

        def step(comm):
            comm.barrier()
            if comm.rank == 1:
                raise kind
            return comm.all_reduce(np.ones(3))

        began = time.monotonic()
        with pytest.raises(kind if comm.rank == 1 else kolo.Revoked):
            group.run(step)
        # The communicator's own time-out is five minutes.
        assert time.monotonic() - began < 60
        assert np.all(group.all_reduce(np.ones(3)) == 3), "the members go on"

    run(3, body)


def test_a_rank_that_exits_leaves_the_step_to_the_others():
    def body(comm):
        group = kolo.Survivors(comm)

        def step(comm):
            comm.barrier()
            if comm.world_size == 3 and comm.rank == 1:
                raise SystemExit(7)
            return comm.all_reduce(np.ones(3))

        assert np.all(group.run(step) == 2)

    ended = run(3, body, check=False)
    assert [end.code for end in ended] == [0, 7, 0], ended


def test_too_few_give_up():
    def body(comm):
        if comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(kolo.Minority, match="only 2 of 3 ranks are left, and at least 3 are needed"):
            kolo.Survivors(comm, at_least=3).all_reduce(np.ones(3))

    ended = run(3, body, check=False)
    assert [end.code for end in ended] == [0, 0, -signal.SIGKILL], ended


def test_who_is_late_costs_a_step_and_not_the_group():
    def body(comm, late, through, told):
        with kolo.Survivors(comm) as group:
            assert np.all(group.all_reduce(np.ones(9), timeout=30) == 3)
            if comm.rank == late:
                # The others write here once they are through.
                for _ in range(2):
                    assert os.read(through, 1)
            for _ in range(2):
                with pytest.raises((kolo.Timeout, kolo.Aborted)):
                    group.all_reduce(np.full(9, 100.0), timeout=0.2)
            if comm.rank != late:
                os.write(told, b".")
            assert np.all(group.all_reduce(np.ones(9), timeout=30) == 3), "all are there again"
            assert group.comm.agree(5, timeout=30) == (5, [0, 1, 2])
            with group.comm.shrink(timeout=30) as next:
                assert next.world_size == 3

    for late in (0, 1):
        through, told = os.pipe()
        run(3, body, late, through, told)
        os.close(through)
        os.close(told)
