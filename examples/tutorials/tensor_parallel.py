"""Tensor parallelism: an MLP whose first layer is cut by columns and second by rows, with one all-reduce per pass.

    mpirun -n 2 python tensor_parallel.py

Each rank holds its share of the hidden layer. The outputs of the second layer are partial sums; their all-reduce gives
every rank the output of the whole MLP, which the program checks against one in a single piece.
"""

import torch
import torch.distributed as dist
from torch import nn

import kolo.torch  # noqa: F401

INPUTS, HIDDEN, OUTPUTS, BATCH = 16, 64, 4, 8


class Summed(torch.autograd.Function):
    """Sums over the ranks in the forward pass; passes the gradient unchanged."""

    @staticmethod
    def forward(context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Shared(torch.autograd.Function):
    """Passes its input, which every rank has, unchanged; sums the gradients of the ranks' shares in the backward
    pass."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
first, second = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS, bias=False)
x = torch.randn(BATCH, INPUTS, requires_grad=True)
whole = second(torch.relu(first(x)))
whole.square().sum().backward()

share = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)
columns = first.weight[share].detach().clone().requires_grad_()
offsets = first.bias[share].detach().clone().requires_grad_()
rows = second.weight[:, share].detach().clone().requires_grad_()
y = x.detach().clone().requires_grad_()
parts = Summed.apply(torch.relu(Shared.apply(y) @ columns.T + offsets) @ rows.T)
parts.square().sum().backward()

assert torch.allclose(parts, whole, atol=1e-5)
assert torch.allclose(y.grad, x.grad, atol=1e-4)
assert torch.allclose(columns.grad, first.weight.grad[share], atol=1e-4)
assert torch.allclose(rows.grad, second.weight.grad[:, share], atol=1e-4)
print(f"rank {rank} of {ranks}: {columns.numel() + rows.numel()} of {first.weight.numel() + second.weight.numel()} weights, same results", flush=True)
dist.destroy_process_group()
