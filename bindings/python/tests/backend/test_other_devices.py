"""Tensors on devices that Kolo does not know."""

import pytest
import torch
import torch.distributed as dist
from group_ranks import run

other_device = pytest.importorskip("other_device", reason="this torch makes no devices in Python")
NAME = other_device.NAME


def on_ranks(ranks, body):
    """Runs ``body(there)`` on every rank; ``there`` moves a tensor to the device."""

    def with_device():
        other_device.install()
        body(lambda tensor: tensor.to(NAME))

    run(ranks, with_device)


def same(tensor, expected):
    assert tensor.device.type == NAME
    assert torch.equal(tensor.cpu(), torch.as_tensor(expected, dtype=tensor.dtype)), (tensor.cpu(), expected)


def test_collectives():
    def body(there):
        me, ranks = dist.get_rank(), dist.get_world_size()
        x = there(torch.full((5,), me + 1.0))
        dist.all_reduce(x)
        same(x, [6.0] * 5)
        x = there(torch.full((3, 2), float(me)))
        dist.broadcast(x, src=2)
        same(x, [[2.0] * 2] * 3)
        x = there(torch.tensor([me, 10 + me]))
        out = there(torch.zeros(2 * ranks, dtype=torch.int64))
        dist.all_gather_into_tensor(out, x)
        same(out, [0, 10, 1, 11, 2, 12])
        outs = [there(torch.zeros(2, dtype=torch.int64)) for _ in range(ranks)]
        dist.all_gather(outs, x)
        for rank, one in enumerate(outs):
            same(one, [rank, 10 + rank])
        part = there(torch.zeros(2))
        dist.reduce_scatter_tensor(part, there(torch.arange(6.0)))
        same(part, [6.0 * me, 6.0 * me + 3])
        dist.reduce_scatter(part, [there(torch.full((2,), float(rank))) for rank in range(ranks)])
        same(part, [3.0 * me] * 2)
        out = there(torch.zeros(3))
        dist.all_to_all_single(out, there(torch.tensor([10.0 * me, 10.0 * me + 1, 10.0 * me + 2])))
        same(out, [float(me), 10.0 + me, 20.0 + me])
        total = there(torch.tensor([2.0]))
        dist.reduce(total, dst=1)
        if me == 1:
            same(total, [6.0])
        dist.scatter(part, [there(torch.full((2,), 7.0 + rank)) for rank in range(ranks)] if me == 0 else None)
        same(part, [7.0 + me] * 2)
        outs = [there(torch.zeros(2)) for _ in range(ranks)] if me == 0 else None
        dist.gather(part, outs)
        for rank, one in enumerate(outs or []):
            same(one, [7.0 + rank] * 2)

        outs = [there(torch.zeros(rank + 1)) for rank in range(ranks)]
        dist.all_to_all(outs, [there(torch.full((me + 1,), float(rank))) for rank in range(ranks)])
        for rank, one in enumerate(outs):
            same(one, [float(me)] * (rank + 1))

    on_ranks(3, body)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8, torch.bfloat16, torch.bool, torch.float64])
def test_types(dtype):
    def body(there):
        x = there(torch.tensor([1, 0, 1]).to(dtype))
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        same(x, [1, 0, 1])

    on_ranks(2, body)


def test_started_ones_and_messages():
    def body(there):
        me = dist.get_rank()
        x = there(torch.full((1000,), me + 1.0))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        same(x, [3.0] * 1000)
        room = there(torch.zeros(4))
        if me == 0:
            dist.send(there(torch.arange(4.0)), 1)
        else:
            assert dist.recv(room) == 0
            same(room, [0.0, 1.0, 2.0, 3.0])
        future = dist.all_reduce(x, async_op=True).get_future()
        future.wait()
        same(x, [6.0] * 1000)

    on_ranks(2, body)


def test_a_rank_with_the_device_and_one_without():
    def body(there):
        x = torch.full((100,), dist.get_rank() + 1.0)
        x = there(x) if dist.get_rank() == 0 else x
        dist.all_reduce(x)
        assert torch.equal(x.cpu(), torch.full((100,), 3.0))

    on_ranks(2, body)


def test_two_devices_in_one_call():
    def body(there):
        with pytest.raises(ValueError, match="different devices: cpu, elsewhere:0"):
            dist.group.WORLD.all_gather_single(torch.zeros(4), there(torch.zeros(2)))

    on_ranks(2, body)
