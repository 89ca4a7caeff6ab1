"""Messages between two ranks."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from group_ranks import run

DTYPES = [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES)
def test_send_and_receive(dtype):
    def body():
        x = (torch.arange(6) % 2).to(dtype).reshape(2, 3)
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.send(x.t(), 1)
        else:
            y = torch.zeros(2, 3, dtype=dtype)
            assert dist.recv(y, 0) == 0
            assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
            base = torch.zeros(2, 3, dtype=dtype)
            dist.recv(base.t(), 0)
            assert torch.equal(base.view(torch.uint8), x.view(torch.uint8))

    run(2, body)


def test_results_of_functional_collectives_are_tensors_like_others():
    """Torch wraps such a result in a tensor without memory of its own, which waits when it is used."""

    def body():
        me, group = dist.get_rank(), dist.group.WORLD

        def made():
            return functional.all_reduce(torch.full((3,), me + 1.0), "sum", group)

        first, into, other = made(), made(), made()
        assert type(first) is not torch.Tensor and first.data_ptr() == 0
        y = torch.zeros(3)
        if me == 0:
            dist.send(first, 1)
            dist.send(first * 2, 1)
        else:
            dist.recv(y, 0)
            dist.recv(into, 0)
            assert torch.all(y == 3) and torch.all(into == 6)
        dist.all_reduce(other)
        assert torch.all(other == 6)
        both = [made(), made()]
        dist.all_gather(both, made())
        assert all(torch.all(x == 3) for x in both)
        dist.reduce_scatter(y, [made(), made()])
        assert torch.all(y == 6)
        group.allreduce_coalesced([other, y]).wait()
        assert torch.all(other == 12) and torch.all(y == 12)
        joined = functional.all_gather_tensor(torch.full((3,), 5.0), 0, group)
        dist.all_gather_into_tensor(joined, made())
        assert torch.all(joined == 3)

    run(2, body)


@pytest.mark.parametrize("ranks", [2, 4])
def test_exchanges_do_not_deadlock(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for length in (1, 1_000_000):
            received = torch.empty(length)
            works = [
                dist.isend(torch.full((length,), float(me)), (me + 1) % n),
                dist.irecv(received, (me - 1) % n),
            ]
            for work in works:
                work.wait()
            assert torch.all(received == (me - 1) % n)

    run(ranks, body)


def test_any_source_and_tags():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        if me == 0:
            sources = set()
            for _ in range(n - 1):
                x = torch.empty(2, 3).t()
                source = dist.recv(x)
                assert torch.all(x == source)
                sources.add(source)
            assert sources == set(range(1, n))
            late, early = torch.empty(1), torch.empty(1)
            dist.recv(late, 1, tag=2)
            dist.recv(early, 1, tag=1)
            assert (early.item(), late.item()) == (1, 2)
        else:
            dist.send(torch.full((3, 2), float(me)), 0)
            if me == 1:
                works = [dist.isend(torch.tensor([float(tag)]), 0, tag=tag) for tag in (1, 2)]
                for work in works:
                    assert work.wait() and work.is_completed()
        group = dist.new_group([2, 1])
        if me in (1, 2):
            x = torch.tensor([float(me)])
            if me == 2:
                dist.send(x, 1, group=group)
            else:
                assert dist.recv(x, group=group) == 2 and x.item() == 2

    run(3, body)


def test_batches():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        received = [torch.empty(1000) for _ in range(n)]
        ops = []
        for peer in range(n):
            if peer != me:
                ops.append(dist.P2POp(dist.isend, torch.full((1000,), float(me)), peer))
                ops.append(dist.P2POp(dist.irecv, received[peer], peer))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert all(torch.all(received[peer] == peer) for peer in range(n) if peer != me)

    run(3, body)


def test_messages_keep_their_order():
    def body():
        if dist.get_rank() == 0:
            for work in [dist.isend(torch.tensor([float(i)]), 1) for i in range(50)]:
                work.wait()
        else:
            received = [torch.empty(1) for _ in range(50)]
            for work in [dist.irecv(tensor, 0) for tensor in received]:
                work.wait()
            assert [int(tensor) for tensor in received] == list(range(50))

    run(2, body)


def test_what_was_sent_before_destroying_arrives():
    def body():
        if dist.get_rank() == 0:
            dist.isend(torch.ones(300_000), 1)
        else:
            x = torch.zeros(300_000)
            dist.recv(x, 0)
            assert torch.all(x == 1)

    run(2, body)
