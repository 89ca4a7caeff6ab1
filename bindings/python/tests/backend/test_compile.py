"""Users' code with torch.distributed gives the same under torch.compile as without it, with Kolo as with Gloo."""

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from group_ranks import run
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
SECTIONS = {}


def section(call):
    SECTIONS[call.__name__] = call
    return call


def compiled(call, **options):
    """The call inside a compiled function that also computes before and after it."""

    def whole(x):
        return call(x + 1) * 2

    return torch.compile(whole, backend="aot_eager", **options)(mine()), whole(mine())


def mine():
    return torch.arange(4.0) + 10 * dist.get_rank()


def room():
    return [torch.zeros(4) for _ in range(RANKS)]


def other():
    return 1 - dist.get_rank()


# Calls.


@section
def all_reduce():
    def call(x):
        dist.all_reduce(x)
        return x

    return compiled(call)


@section
def all_reduce_started():
    def call(x):
        dist.all_reduce(x, async_op=True).wait()
        return x

    return compiled(call)


@section
def all_reduce_polled():
    def call(x):
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        work.wait()
        return x

    return compiled(call)


@section
def broadcast():
    def call(x):
        dist.broadcast(x, 1)
        return x

    return compiled(call)


@section
def reduce():
    def call(x):
        dist.reduce(x, 0)
        return x if dist.get_rank() == 0 else torch.zeros(4)

    return compiled(call)


@section
def gather():
    def call(x):
        out = room() if dist.get_rank() == 1 else None
        dist.gather(x, out, dst=1)
        return torch.stack(out) if out else x

    return compiled(call)


@section
def scatter():
    def call(x):
        out = torch.zeros(4)
        dist.scatter(out, [x, x * 3] if dist.get_rank() == 0 else None, src=0)
        return out

    return compiled(call)


@section
def all_gather():
    def call(x):
        out = room()
        dist.all_gather(out, x)
        return torch.stack(out)

    return compiled(call)


@section
def all_gather_into_tensor():
    def call(x):
        out = torch.zeros(4 * RANKS)
        dist.all_gather_into_tensor(out, x)
        return out

    return compiled(call)


@section
def reduce_scatter():
    def call(x):
        out = torch.zeros(2)
        dist.reduce_scatter(out, list(x.split(2)))
        return out

    return compiled(call)


@section
def reduce_scatter_tensor():
    def call(x):
        out = torch.zeros(2)
        dist.reduce_scatter_tensor(out, x)
        return out

    return compiled(call)


@section
def all_to_all_single():
    def call(x):
        out = torch.zeros(4)
        dist.all_to_all_single(out, x)
        return out

    return compiled(call)


@section
def barrier():
    def call(x):
        dist.barrier()
        return x

    return compiled(call)


@section
def send_and_receive():
    def call(x):
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        return x

    return compiled(call)


@section
def started_messages():
    def call(x):
        out = torch.zeros(4)
        works = [dist.isend(x, other()), dist.irecv(out, other())]
        for work in works:
            work.wait()
        return out

    return compiled(call)


@section
def batched_messages():
    def call(x):
        out = torch.zeros(4)
        both = [dist.P2POp(dist.isend, x, other()), dist.P2POp(dist.irecv, out, other())]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return out

    return compiled(call)


@section
def functional_in_one_graph():
    def call(x):
        return functional.all_reduce(x, "sum", dist.group.WORLD) + functional.wait_tensor(
            functional.all_gather_tensor(x, 0, dist.group.WORLD)
        ).sum()

    return compiled(call, fullgraph=True)


@section
def all_reduce_in_one_graph():
    def call(x):
        dist.all_reduce(x)
        return x

    return compiled(call, fullgraph=True)


# Models.


def model(normalised=False):
    torch.manual_seed(7)
    layers = [nn.Linear(4, 16), nn.BatchNorm1d(16) if normalised else nn.ReLU(), nn.Linear(16, 4)]
    return nn.Sequential(*layers)


def gradients(net, plain):
    """The gradients of both nets, the compiled and the plain one, after two steps."""
    batch = torch.stack([mine(), mine() + 1, mine() * 2])
    found = []
    for each in (net, plain):
        for _ in range(2):
            each.zero_grad()
            each(batch).square().mean().backward()
        found.append([p.grad for p in each.parameters()])
    whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in found[0]]
    reference = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in found[1]]
    return torch.cat([g.flatten() for g in whole]), torch.cat([g.flatten() for g in reference])


@section
def compiled_ddp():
    net = torch.compile(DistributedDataParallel(model()), backend="aot_eager")
    return gradients(net, DistributedDataParallel(model()))


@section
def compiled_ddp_with_buffers():
    net = torch.compile(DistributedDataParallel(model(normalised=True)), backend="aot_eager")
    return gradients(net, DistributedDataParallel(model(normalised=True)))


@section
def compiled_ddp_with_a_static_graph():
    net = torch.compile(DistributedDataParallel(model(), static_graph=True), backend="aot_eager")
    return gradients(net, DistributedDataParallel(model(), static_graph=True))


@section
def ddp_of_a_compiled_model():
    net = DistributedDataParallel(torch.compile(model(), backend="aot_eager"))
    return gradients(net, DistributedDataParallel(model()))


@section
def compiled_fsdp2():
    net = model()
    fully_shard(net)
    plain = model()
    fully_shard(plain)
    return gradients(torch.compile(net, backend="aot_eager"), plain)


@pytest.mark.parametrize("backend", ["kolo", "gloo", "cpu:kolo,cuda:gloo"])
def test_sections(backend):
    def body():
        failed = []
        for name, call in SECTIONS.items():
            torch._dynamo.reset()
            try:
                got, want = call()
                assert torch.allclose(got, want), (got, want)
            except Exception as error:
                failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        assert not failed, f"{len(failed)} of {len(SECTIONS)} failed:\n" + "\n".join(failed)

    run(RANKS, body, backend=backend, limit=240)
