"""Torch's hooks around the operations of a group."""

import pytest
import torch
import torch.distributed as dist
from group_ranks import run

import kolo.torch


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo"])
def test_hooks_run_once_per_operation(backend):
    def body():
        group, before, after = dist.group.WORLD, [], []
        group.register_pre_hook(7, lambda call: before.append((call.name.name, call.async_op, call.op_id)))
        group.register_post_hook(7, lambda call: after.append((call.name.name, call.async_op, call.op_id)))
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.broadcast(x, 0, async_op=True).wait()
        dist.all_gather_into_tensor(torch.zeros(4), x)
        dist.barrier()
        assert torch.all(x == 2)
        names = [name for name, *_ in before]
        assert names == ["ALLREDUCE", "BROADCAST", "ALLGATHER_BASE", "BARRIER"]
        assert before == after
        group.unregister_pre_hook(7)
        dist.all_reduce(x)
        assert len(before) == len(names) and len(after) == len(names) + 1

    run(2, body, backend=backend)


def test_a_group_with_hooks_does_all_that_it_did_before():
    def body():
        group = dist.group.WORLD
        group.register_pre_hook(0, lambda call: None)
        other = 1 - dist.get_rank()
        assert isinstance(group, kolo.torch.KoloGroup) and group.kolo_summary()
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        assert torch.all(x == 2)
        y = torch.zeros(2)
        sent = dist.isend(x, other)
        assert dist.recv(y) == other
        sent.wait()
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
        assert torch.all(x == 4) and torch.all(y == 4)
        group.allreduce(x, dist.ReduceOp.MAX).wait()
        gathered = [None, None]
        dist.all_gather_object(gathered, dist.get_rank())
        assert gathered == [0, 1]
        rows = torch.zeros(4)
        group.gather_single(rows, x).wait()
        assert torch.all(rows == (4 if dist.get_rank() == 0 else 0))
        part = group.split_group([0, 1])
        part.allreduce(x).wait()
        assert torch.all(x == 8)

    run(2, body)


def test_the_check_for_nan(monkeypatch):
    def body():
        x = torch.ones(2)
        dist.all_reduce(x)
        assert torch.all(x == 2)
        with pytest.raises(RuntimeError, match="NaN found in input tensor"):
            dist.all_reduce(torch.tensor([1.0, float("nan")]))
        dist.all_reduce(x)
        assert torch.all(x == 4)

    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", "1")
    run(2, body)
