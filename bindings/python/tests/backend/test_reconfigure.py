"""Groups whose members change, by torch's ``reconfigure``. All that PyTorch's own test of it asserts is tested here too;
``suite.sh --file`` runs that test itself, where its file is at hand."""

import time
from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from members import SECONDS, expect, reconfigure, run
from torch._C._distributed_c10d import ErrorType

import kolo.torch


def test_nothing_works_before_the_first():
    def body(me):
        assert me.group.supports_reconfigure and me.backend.supports_reconfigure and dist._supports_reconfigure()
        x = torch.ones(3)
        for call in (
            lambda: dist.all_reduce(x),
            lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather_into_tensor(torch.ones(3 * me.ranks), x),
            lambda: dist.send(x, (me.start + 1) % me.ranks),
            lambda: dist.barrier(),
            lambda: me.backend.allreduce([x]),
        ):
            with pytest.raises(kolo.torch.Usage, match="no members yet.*first call reconfigure"):
                call()
        me.group.abort()
        assert me.backend.get_error() == ErrorType.SUCCESS

    run(2, body)


def test_all_of_them_twice():
    def body(me):
        reconfigure(100, me.handles("a"))
        expect(me.start, 3)
        reconfigure(101, me.handles("b"))
        expect(me.start, 3)

    run(3, body)


def test_messages_on_the_backend():
    def body(me):
        reconfigure(1, me.handles("a"))
        right, left, got = (me.start + 1) % 3, (me.start - 1) % 3, torch.zeros(4)
        works = me.backend.send([torch.full((4,), float(me.start))], right, 0), me.backend.recv([got], left, 0)
        for work in works:
            work.wait()
        assert torch.equal(got, torch.full((4,), float(left)))
        assert (me.backend.rank(), me.backend.size()) == (me.start, 3)

    run(3, body)


@pytest.mark.parametrize("out", [0, 1, 2])
def test_shrinks_and_takes_the_rank_back(out):
    """Any of the ranks can leave and come back; its place in the list of handles decides its new rank."""

    def body(me):
        handles = me.handles("a")
        reconfigure(1, handles)
        for round in range(3):
            left = [handle for rank, handle in enumerate(handles) if rank != out]
            if me.start != out:
                reconfigure(10 + round, left)
                expect(me.start - (me.start > out), 2)
            order = handles if round % 2 else [*left, handles[out]]
            reconfigure(20 + round, order)
            expect(order.index(handles[me.start]), 3)

    run(3, body)


def test_who_is_left_out_just_leaves():
    def body(me):
        handles = me.handles("a")
        reconfigure(1, handles)
        if me.start == 1:
            began = time.monotonic()
            dist.destroy_process_group()
            assert time.monotonic() - began < 15
            me.meet_in_store("gone")
            dist.init_process_group("kolo", store=dist.HashStore(), rank=0, world_size=1)
            return
        me.meet_in_store("gone")
        reconfigure(2, [handles[0], handles[2]])
        expect(me.start // 2, 2)

    run(3, body)


def test_alone_together_alone():
    def body(me):
        reconfigure(600 + me.start, [dist._get_reconfigure_handle()])
        expect(0, 1)
        reconfigure(603, me.handles("a"))
        expect(me.start, 3)
        reconfigure(604 + me.start, [dist._get_reconfigure_handle()])
        expect(0, 1)

    run(3, body)


def test_others_come_later():
    def body(me):
        handles = me.handles("a")
        if me.start == 0:
            reconfigure(900, handles[:1])
            expect(0, 1)
        reconfigure(901, me.handles("b"))
        expect(me.start, 3)

    run(3, body)


def test_two_groups_merge():
    def body(me):
        handles = me.handles("a")
        mine = handles[:1] if me.start == 0 else handles[1:]
        reconfigure(1000 + min(me.start, 1), mine)
        expect(max(me.start - 1, 0), len(mine))
        reconfigure(1002, me.handles("b"))
        expect(me.start, 3)

    run(3, body)


def test_a_set_is_sorted():
    def body(me):
        reconfigure(1, set(me.handles("a")))
        expect(me.start, 3)

    run(3, body)


def test_more_than_at_first():
    """Processes that started as jobs of one rank each, with their own stores, form one group."""

    def body(rank, ranks, folder):
        store = dist.FileStore(f"{folder}/store", ranks)
        dist.init_process_group("kolo", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
        store.set(f"{rank}", dist._get_reconfigure_handle())
        reconfigure(1, [store.get(f"{other}").decode() for other in range(ranks)])
        expect(rank, ranks)
        dist.destroy_process_group()

    harness.forked(4, body)


def test_after_an_abort():
    def body(me):
        reconfigure(1, me.handles("a"))
        me.backend.abort()
        assert me.backend.get_error() == ErrorType.SUCCESS
        with pytest.raises(kolo.torch.Aborted):
            dist.all_reduce(torch.ones(1))
        reconfigure(2, me.handles("b"))
        expect(me.start, 3)

    run(3, body)


def test_after_a_time_out():
    def body(me):
        reconfigure(1, me.handles("a"))
        expect(me.start, 3)
        me.backend.set_timeout(timedelta(milliseconds=50))
        if me.start == 1:
            with pytest.raises(RuntimeError, match="[Tt]imed out"):
                dist.all_reduce(torch.ones(4), async_op=True).wait()
            assert me.backend.get_error() == ErrorType.TIMEOUT == me.group.get_error()
        me.backend.set_timeout(timedelta(seconds=SECONDS))
        me.meet_in_store("seen")
        reconfigure(2, me.handles("b"))
        assert me.backend.get_error() == ErrorType.SUCCESS
        expect(me.start, 3)

    run(3, body)


def test_works_of_before_end():
    """Operations that were started earlier and can no longer complete fail, instead of waiting."""

    def body(me):
        reconfigure(1, me.handles("a"))
        works = [dist.all_reduce(torch.ones(4), async_op=True)] if me.start == 0 else []
        works += [dist.irecv(torch.ones(4), 1, tag=9)] if me.start == 2 else []
        reconfigure(2, me.handles("b"))
        for work in works:
            with pytest.raises(dist.DistBackendError):
                work.wait(timedelta(seconds=20))
        expect(me.start, 3)

    run(3, body)


def test_groups_of_some_ranks():
    """A subgroup belongs to the communicator that it was made from; later subgroups are made from the new one."""

    def body(me):
        handles = me.handles("a")
        reconfigure(1, handles)
        first = dist.new_group([0, 2])
        if me.start == 1:
            return
        reconfigure(2, [handles[2], handles[0]])
        second = dist.new_group([0, 1])
        x = torch.ones(2)
        dist.all_reduce(x, group=second)
        assert x.tolist() == [2.0, 2.0]
        assert not second.supports_reconfigure and not first.supports_reconfigure
        for call in (second.get_reconfigure_handle, lambda: second.reconfigure(None)):
            with pytest.raises(kolo.torch.Unsupported, match="only the default group can"):
                call()

    run(3, body)
