"""The flow of a data-parallel MPI program, with the calls of torch.distributed.

Broadcast the weights, all-reduce the gradients of every step, barrier, gather the metrics.

    torchrun --standalone --nproc-per-node 2 mpi_flow.py --backend kolo

    MPI                                   here
    MPI_Init                              init_process_group
    MPI_Comm_rank, MPI_Comm_size          get_rank, get_world_size
    MPI_Bcast(weights, root 0)            broadcast(weights, src=0)
    MPI_Allreduce(gradients, MPI_SUM)     all_reduce(gradients)
    MPI_Barrier                           barrier
    MPI_Gather(metrics, root 0)           gather(metrics, dst=0)
    MPI_Finalize                          destroy_process_group
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from training import data, models
from training.options import parse
from training.session import joined


def train(images: data.Images, epochs: int, batch: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = models.build("mlp", seed=rank)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)

    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mine = torch.arange(rank, len(images), world_size)
    share = batch // world_size
    steps = len(images) // batch
    for epoch in range(epochs):
        start = time.perf_counter()
        loss_sum = 0.0
        for step in range(steps):
            inputs, labels = images.batch(mine[step * share : (step + 1) * share])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            optimiser.step()
            loss_sum += loss.item()
        dist.barrier()
        report(epoch, torch.tensor([loss_sum / steps, time.perf_counter() - start]))


def report(epoch: int, metrics: torch.Tensor) -> None:
    """Prints every rank's loss and seconds on rank 0."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty_like(metrics) for _ in range(world_size)] if rank == 0 else None
    dist.gather(metrics, gathered, dst=0)
    if gathered is not None:
        for source, (loss, seconds) in enumerate(gathered):
            print(f"epoch {epoch + 1}, rank {source}: loss {loss:.4f}, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    options = parse(__doc__)
    with joined(options.backend):
        train(data.load(options.data, options.fraction).train, options.epochs, options.batch)
