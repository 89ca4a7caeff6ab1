"""FSDP, DTensor, tensor parallelism, functional collectives, checkpoints and pipelines, all on the CPU."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from harness import forked
from group_ranks import join, run
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 16), nn.ReLU(), nn.Linear(16, 4))


def steps(net, ranks, mine, count=3):
    """Trains on the data of all ranks together, or on one rank's."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(count):
        optimizer.zero_grad()
        for rank in ranks:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
            loss = net(x).square().mean()
            (loss if mine else loss / len(ranks)).backward()
        optimizer.step()


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2)])
def test_fully_shard_trains_as_one_rank_would(mesh):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        names = ("replicate", "shard")[-len(mesh) :]
        devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
        alone, sharded = model(), model()
        for layer in sharded:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=devices)
        fully_shard(sharded, mesh=devices)
        steps(alone, range(n), False)
        steps(sharded, [me], True)
        for p, q in zip(sharded.parameters(), alone.parameters()):
            assert torch.allclose(p.full_tensor(), q, atol=1e-4)
        full = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        assert me != 0 or torch.allclose(full["0.weight"], alone[0].weight, atol=1e-4)
        again = model()
        fully_shard(again, mesh=devices)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(again, full if me == 0 else {}, options=options)
        assert torch.allclose(again[0].weight.full_tensor(), alone[0].weight, atol=1e-4)

    run(torch.Size(mesh).numel(), body)


def test_fully_shard_in_mixed_precision():
    def body():
        sharded = model()
        fully_shard(sharded, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        steps(sharded, [dist.get_rank()], True)

    run(2, body)


def test_dtensor():
    def body():
        n = dist.get_world_size()
        mesh = init_device_mesh("cpu", (n,))
        whole = torch.arange(60.0).reshape(6, 10)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(sharded.full_tensor(), whole)
        assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
        assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
        partial = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
        assert torch.all(partial.redistribute(mesh, [Replicate()]).to_local() == n)
        assert torch.all(partial.redistribute(mesh, [Shard(0)]).full_tensor() == n)
        product = sharded @ distribute_tensor(torch.ones(10, 3), mesh, [Replicate()])
        assert torch.allclose(product.full_tensor(), whole @ torch.ones(10, 3))

    run(3, body)


def test_tensor_parallelism():
    def body():
        mesh = init_device_mesh("cpu", (2,))
        alone = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        dist.broadcast(nn.utils.parameters_to_vector(alone.parameters()), 0)
        split = parallelize_module(copy.deepcopy(alone), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        x = torch.ones(3, 8)
        assert torch.allclose(split(x), alone(x), atol=1e-5)
        split(x).sum().backward()

    run(2, body)


def test_functional_collectives():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        group = dist.group.WORLD
        assert torch.all(functional.all_reduce(torch.ones(3), "sum", group) == n)
        gathered = functional.all_gather_tensor(torch.full((2,), float(me)), 0, group)
        assert torch.equal(gathered, torch.arange(n).repeat_interleave(2).float())
        assert torch.all(functional.reduce_scatter_tensor(torch.ones(2 * n), "sum", 0, group) == n)
        swapped = functional.all_to_all_single(torch.arange(n).float(), None, None, group)
        assert torch.all(swapped == me)
        shifted = functional.permute_tensor(torch.tensor([float(me)]), [(r + 1) % n for r in range(n)], group)
        assert shifted.item() == (me - 1) % n
        assert torch.all(functional.broadcast(torch.full((2,), float(me)), 1, group) == 1)
        first, second = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group)
        assert torch.all(first == n) and torch.all(second == n)

    run(3, body)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_distributed_checkpoint(asynchronous, tmp_path):
    def body(rank, ranks, folder):
        join(rank, ranks, folder)
        sharded = model()
        fully_shard(sharded)
        steps(sharded, [rank], True)
        state = {"model": get_model_state_dict(sharded)}
        if asynchronous:
            checkpoint.async_save(state, checkpoint_id=tmp_path / "saved").result()
        else:
            checkpoint.save(state, checkpoint_id=tmp_path / "saved")
        again = model()
        fully_shard(again)
        state = {"model": get_model_state_dict(again)}
        checkpoint.load(state, checkpoint_id=tmp_path / "saved")
        set_model_state_dict(again, state["model"])
        for p, q in zip(sharded.parameters(), again.parameters()):
            assert torch.equal(p.full_tensor(), q.full_tensor())
        dist.destroy_process_group()

    forked(2, body)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("ranks", [2, 3])
def test_pipelines(schedule, ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(5)
        layers = [nn.Linear(6, 6) for _ in range(n)]
        x, y = torch.randn(8, 6), torch.randn(8, 6)
        stage = PipelineStage(copy.deepcopy(layers[me]), me, n, torch.device("cpu"))
        pipeline = schedule(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        losses = []
        if me == 0:
            pipeline.step(x)
        elif me == n - 1:
            pipeline.step(target=y, losses=losses)
        else:
            pipeline.step()
        whole = nn.Sequential(*layers)
        nn.functional.mse_loss(whole(x), y).backward()
        assert torch.allclose(stage.submod.weight.grad, layers[me].weight.grad, atol=1e-5)

    run(ranks, body)
