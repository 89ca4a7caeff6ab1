"""Tensors on a real GPU, which all ranks share. Skipped where there is none; ``test_streams.py`` covers the host's side there.

Kernels that take tens of milliseconds stand in front of the calls, so a call that does not wait for its stream gets old values.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from group_ranks import run
from harness import forked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kolo

# Asking torch.cuda would start the driver, and a process that has started it cannot be forked.
pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or not Path("/dev/nvidiactl").exists(), reason="there is no GPU"
)

#: Cycles of a kernel that does nothing: some 30 ms.
BUSY = 50_000_000
N = 70_001


def late(values: torch.Tensor) -> torch.Tensor:
    """A tensor on the GPU that gets these values once a long kernel is over."""
    tensor = torch.full_like(values, -1, device="cuda")
    source = values.cuda()
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY)
    tensor.copy_(source)
    return tensor


def ranks_values(dtype=torch.float32, elements=N):
    """What each rank holds."""
    size = dist.get_world_size()
    return [(torch.arange(elements) % 5 + rank + 1).to(dtype) for rank in range(size)]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_waits_for_the_stream(ranks, transport, monkeypatch):
    monkeypatch.setenv("KOLO_TRANSPORT", transport)

    def body():
        me, size = dist.get_rank(), dist.get_world_size()
        all_values = ranks_values()
        mine, total = all_values[me], sum(all_values)
        comm = dist.group.WORLD._engine.comm
        assert comm.is_gpu_memory(torch.empty(3, device="cuda").data_ptr())

        x = late(mine)
        dist.all_reduce(x)
        assert torch.equal(x.cpu(), total)
        x = late(mine)
        dist.broadcast(x, size - 1)
        assert torch.equal(x.cpu(), all_values[-1])
        x = late(mine)
        dist.reduce(x, 0)
        assert me or torch.equal(x.cpu(), total)
        out = [torch.empty(N, device="cuda") for _ in range(size)]
        dist.all_gather(out, late(mine))
        assert all(torch.equal(got.cpu(), want) for got, want in zip(out, all_values))
        flat = torch.empty(size * N, device="cuda")
        dist.all_gather_into_tensor(flat, late(mine))
        assert torch.equal(flat.cpu(), torch.cat(all_values))
        part = torch.empty(N, device="cuda")
        dist.reduce_scatter_tensor(part, late(mine.repeat(size)))
        assert torch.equal(part.cpu(), total)
        dist.reduce_scatter(part, list(late(mine.repeat(size)).chunk(size)))
        assert torch.equal(part.cpu(), total)
        dist.all_to_all_single(flat, late(torch.cat([mine + 10 * to for to in range(size)])))
        assert torch.equal(flat.cpu(), torch.cat([values + 10 * me for values in all_values]))
        dist.scatter(part, list(late(torch.cat(all_values)).chunk(size)) if me == 0 else None, 0)
        assert torch.equal(part.cpu(), mine)
        dist.gather(late(mine), out if me == 0 else None, 0)
        assert me or all(torch.equal(got.cpu(), want) for got, want in zip(out, all_values))
        right, left = (me + 1) % size, (me - 1) % size
        sent, got = late(mine), torch.empty(N, device="cuda")
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        assert torch.equal(got.cpu(), all_values[left])
        objects = [None] * size
        dist.all_gather_object(objects, {"rank": me, "on": torch.ones(2, device="cuda")})
        assert [entry["rank"] for entry in objects] == list(range(size)) and objects[0]["on"].is_cuda
        dist.barrier()

    run(ranks, body)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn]
)
def test_types(dtype):
    def body():
        values = ranks_values(dtype, 1000)
        x = late(values[dist.get_rank()])
        dist.all_reduce(x)
        assert torch.equal(x.cpu().float(), sum(value.float() for value in values).to(dtype).float())

    run(2, body)


def test_the_host_goes_on_and_the_current_stream_waits():
    def body():
        me = dist.get_rank()
        side = torch.cuda.Stream()
        x = torch.zeros(N, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20 * BUSY)
            x.fill_(me + 1)
            work = dist.all_reduce(x, async_op=True)
            assert not side.query() and not work.is_completed(), "the call stopped the host"
            work.wait()
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        assert torch.all(y.cpu() == 6)
        # Columns go by way of a copy.
        z = late(torch.full((30, 20), me + 1.0)).t()
        dist.all_reduce(z)
        assert torch.all(z.cpu() == 3) and z.shape == (20, 30)

    run(2, body)


def test_one_rank_is_on_the_host():
    def body():
        me = dist.get_rank()
        x = torch.full((N,), me + 1.0, device="cpu" if me == 1 else "cuda")
        dist.all_reduce(x)
        assert torch.all(x.cpu() == 6)

    run(3, body)


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()


def train(parallel, inputs, targets, steps=10):
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(inputs), targets).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parallel.parameters()])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp_trains_as_one_process_does(ranks):
    def body():
        me, size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(2)
        inputs, targets = torch.randn(64, 64).cuda(), torch.randint(0, 10, (64,)).cuda()
        mine = slice(me * 64 // size, (me + 1) * 64 // size)
        got = train(DistributedDataParallel(model(), bucket_cap_mb=0.1), inputs[mine], targets[mine])
        want = train(model(), inputs, targets)
        assert torch.allclose(got, want, atol=1e-4), (got - want).abs().max()

    run(ranks, body)


def test_sharded_parameters():
    def body():
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(2)
        inputs, targets = torch.randn(64, 64).cuda(), torch.randint(0, 10, (64,)).cuda()
        sharded = fully_shard(model(), mesh=dist.init_device_mesh("cuda", (dist.get_world_size(),)))
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.05)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(sharded(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        reference = model()
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
        for want in losses:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(reference(inputs), targets)
            assert abs(loss.item() - want) < 1e-4
            loss.backward()
            optimizer.step()

    run(2, body)


def test_arrays_of_the_other_door():
    def body(rank, ranks, folder):
        with kolo.init(f"file://{folder}/meet", rank=rank, world_size=ranks) as comm:
            x = late(torch.full((N,), rank + 1.0))
            comm.all_reduce(x)
            assert torch.all(x.cpu() == 3)
            gathered = torch.zeros(2, 5, dtype=torch.int64, device="cuda")
            comm.all_gather(late(torch.full((5,), rank)), gathered)
            assert gathered.cpu().tolist() == [[0] * 5, [1] * 5]
            host = np.full(5, rank + 1.0, np.float32)
            comm.all_reduce(host)
            assert (host == 3).all()

    forked(2, body)
