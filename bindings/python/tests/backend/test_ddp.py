"""DistributedDataParallel: buckets, hooks, and the same gradients as with Gloo."""

import pytest
import torch
import torch.distributed as dist
from group_ranks import run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 300), nn.ReLU(), nn.Linear(300, 10)
    )


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 1, 8, 8, generator=generator), torch.randint(10, (4,), generator=generator)


def train(parallel, steps=4, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(parallel.parameters(), lr=0.05)
    for step in range(steps):
        x, y = batch(dist.get_rank(), step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in parallel.parameters()])


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("bucket_cap_mb", [0.01, 25])
def test_weights_as_with_gloo_and_alike_on_all_ranks(ranks, bucket_cap_mb):
    def body():
        gloo = dist.new_group(backend="gloo")
        ours = train(DistributedDataParallel(model(), bucket_cap_mb=bucket_cap_mb))
        theirs = train(DistributedDataParallel(model(), bucket_cap_mb=bucket_cap_mb, process_group=gloo))
        assert torch.allclose(ours, theirs, atol=1e-5), (ours - theirs).abs().max()
        everybody = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, ours)
        assert all(torch.equal(ours, other) for other in everybody)

    run(ranks, body)


def test_gradients_are_averages():
    def body():
        parallel = DistributedDataParallel(model().eval())
        x, y = batch(dist.get_rank(), 0)
        nn.functional.cross_entropy(parallel(x), y).backward()
        alone = model().eval()
        for rank in range(dist.get_world_size()):
            x, y = batch(rank, 0)
            (nn.functional.cross_entropy(alone(x), y) / dist.get_world_size()).backward()
        for p, q in zip(parallel.parameters(), alone.parameters()):
            assert torch.allclose(p.grad, q.grad, atol=1e-6)

    run(3, body)


def test_accumulation_unused_parameters_and_static_graph():
    def body():
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x, both):
                return self.used(x) + (self.unused(x) if both else 0)

        parallel = DistributedDataParallel(Branches(), find_unused_parameters=True)
        for both in (False, True, False):
            parallel(torch.ones(2, 4), both and dist.get_rank() == 0).sum().backward()
        parallel = DistributedDataParallel(model(), static_graph=True)
        train(parallel, 2)
        with parallel.no_sync():
            parallel(batch(dist.get_rank(), 0)[0]).sum().backward()
        train(parallel, 2)

    run(2, body)


@pytest.mark.parametrize(
    "hook", [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook]
)
def test_communication_hooks(hook):
    def body():
        parallel = DistributedDataParallel(model(), bucket_cap_mb=0.1)
        parallel.register_comm_hook(None, hook)
        compressed = train(parallel, 2)
        plain = train(DistributedDataParallel(model(), bucket_cap_mb=0.1), 2)
        assert torch.allclose(compressed, plain, atol=0.02)

    run(2, body)


@pytest.mark.parametrize("hook", list(dist.BuiltinCommHookType.__members__))
@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo", "gloo"])
def test_built_in_communication_hooks(hook, backend):
    def body():
        parallel = DistributedDataParallel(model(), bucket_cap_mb=0.1)
        parallel._register_builtin_comm_hook(dist.BuiltinCommHookType.__members__[hook])
        ours = train(parallel, 2)
        plain = train(DistributedDataParallel(model(), bucket_cap_mb=0.1), 2)
        assert torch.allclose(ours, plain, atol=0.02)

    run(2, body, backend=backend)


def test_power_sgd_zero_and_join():
    def body():
        parallel = DistributedDataParallel(model())
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(parallel, 4)
        parallel = DistributedDataParallel(model())
        train(parallel, 3, ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.Adam, lr=0.01))
        parallel = DistributedDataParallel(model())
        with Join([parallel]):
            for step in range(dist.get_rank() + 1):
                x, y = batch(dist.get_rank(), step)
                nn.functional.cross_entropy(parallel(x), y).backward()

    run(2, body)


def test_join_divides_by_the_ranks_that_are_left():
    """In the backward pass, the reducer waits for a work that the forward pass has made."""

    def body():
        me = dist.get_rank()
        parallel = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        with Join([parallel], divide_by_initial_world_size=False):
            for step in range(me + 1):
                parallel.zero_grad()
                parallel(torch.full((1, 1), me + 1.0)).sum().backward()
                # Rank 0 takes part in the first step only.
                assert parallel.module.weight.grad.item() == (1.5 if step == 0 else 2.0)

    run(2, body, limit=60)


def test_sparse_gradients():
    def body():
        embedding = DistributedDataParallel(nn.Embedding(10, 3, sparse=True))
        embedding(torch.tensor([dist.get_rank(), 5])).sum().backward()
        want = torch.zeros(10, 3)
        want[0] = want[1] = 0.5
        want[5] = 1
        assert torch.equal(embedding.module.weight.grad.to_dense(), want)

    run(2, body)
