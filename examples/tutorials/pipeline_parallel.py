"""Pipeline parallelism: every rank has one layer; micro-batches go from rank to rank, and their gradients back.

    mpirun -n 3 python pipeline_parallel.py

All micro-batches go forward before the first comes back (GPipe's schedule). A started receive and started sends let a
rank compute on one micro-batch while the next is under way. The gradients are checked against those of the whole model
in one piece.
"""

import torch
import torch.distributed as dist
from torch import nn

import kolo.torch  # noqa: F401

WIDTH, MICRO_BATCHES, SIZE = 16, 4, 8

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(ranks)]
batches = torch.randn(MICRO_BATCHES, SIZE, WIDTH)
own, sends = layers[rank], []


def receive(source: int) -> list:
    """Starts receives for all micro-batches, each with its number as tag."""
    rooms = [torch.zeros(SIZE, WIDTH) for _ in range(MICRO_BATCHES)]
    return [(room, dist.irecv(room, source, tag=number)) for number, room in enumerate(rooms)]


arriving = receive(rank - 1) if rank > 0 else None
returning = receive(rank + 1) if rank < ranks - 1 else None
inputs, outputs = [], []
for number in range(MICRO_BATCHES):
    if arriving is None:
        x = batches[number].clone()
    else:
        x, work = arriving[number]
        work.wait()
    inputs.append(x.requires_grad_())
    outputs.append(own(inputs[-1]))
    if rank < ranks - 1:
        sends.append(dist.isend(outputs[-1].detach(), rank + 1, tag=number))
for number in range(MICRO_BATCHES):
    if returning is None:
        outputs[number].square().mean().backward()
    else:
        gradient, work = returning[number]
        work.wait()
        outputs[number].backward(gradient)
    if rank > 0:
        sends.append(dist.isend(inputs[number].grad, rank - 1, tag=number))
for send in sends:
    send.wait()

found = own[0].weight.grad.clone()
own.zero_grad()
for batch in batches:
    x = batch
    for layer in layers:
        x = layer(x)
    x.square().mean().backward()
assert torch.allclose(found, own[0].weight.grad, atol=1e-6)
print(f"rank {rank} of {ranks}: layer {rank}, {MICRO_BATCHES} micro-batches, same gradients", flush=True)
dist.destroy_process_group()
