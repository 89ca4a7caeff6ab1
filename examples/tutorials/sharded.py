"""Sharded data parallelism: every rank keeps its share of weights, gradients and optimiser state, as in ZeRO and FSDP.

    mpirun -n 2 python sharded.py

Weights are all-gathered before a step, gradients are reduce-scattered after it, and each rank updates its share. `fully_shard` of
torch does the same layer by layer; the program ends with that. Both are checked against training in one piece.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import kolo.torch  # noqa: F401

STEPS, BATCH, RATE, MOMENTUM = 5, 8, 0.1, 0.9

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
start = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3))
inputs = torch.randn(STEPS, BATCH * ranks, 12)


def losses(model: nn.Module, step: int, part: slice) -> torch.Tensor:
    return model(inputs[step, part]).square().mean()


def in_one_piece() -> torch.Tensor:
    model = copy.deepcopy(start)
    optimiser = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for step in range(STEPS):
        optimiser.zero_grad()
        losses(model, step, slice(None)).backward()
        optimiser.step()
    return parameters_to_vector(model.parameters()).detach()


def by_hand(mine: slice) -> torch.Tensor:
    model = copy.deepcopy(start)
    weights = parameters_to_vector(model.parameters()).detach()
    length = -(-weights.numel() // ranks)
    whole = torch.zeros(length * ranks)
    whole[: weights.numel()] = weights
    share = nn.Parameter(whole[rank * length : (rank + 1) * length].clone())
    optimiser = torch.optim.SGD([share], RATE, MOMENTUM)
    gradients = torch.zeros(length * ranks)
    for step in range(STEPS):
        dist.all_gather_into_tensor(whole, share.detach())
        vector_to_parameters(whole[: weights.numel()], model.parameters())
        model.zero_grad()
        losses(model, step, mine).backward()
        gradients[: weights.numel()] = parameters_to_vector(p.grad for p in model.parameters())
        share.grad = torch.empty(length)
        dist.reduce_scatter_tensor(share.grad, gradients, op=dist.ReduceOp.AVG)
        optimiser.step()
    dist.all_gather_into_tensor(whole, share.detach())
    return whole[: weights.numel()]


def by_torch(mine: slice) -> torch.Tensor:
    model = fully_shard(copy.deepcopy(start), mesh=init_device_mesh("cpu", (ranks,)))
    optimiser = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for step in range(STEPS):
        optimiser.zero_grad()
        losses(model, step, mine).backward()
        optimiser.step()
    return torch.cat([parameter.full_tensor().reshape(-1) for parameter in model.parameters()]).detach()


mine = slice(rank * BATCH, (rank + 1) * BATCH)
expected = in_one_piece()
assert torch.allclose(by_hand(mine), expected, atol=1e-5)
assert torch.allclose(by_torch(mine), expected, atol=1e-5)
print(f"rank {rank} of {ranks}: {-(-expected.numel() // ranks)} of {expected.numel()} weights, same as in one piece", flush=True)
dist.destroy_process_group()
