"""Averaging gradients by hand: one all-reduce per parameter, one for all of them, or asynchronous ones.

Trains a few steps in each way from the same weights, checks that the results agree, and prints the time of averaging
per step.

    torchrun --standalone --nproc-per-node 2 average_gradients.py --backend kolo
"""

from __future__ import annotations

import time
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn

from training import data, models
from training.options import parse
from training.session import joined

WARM_UP_STEPS = 5
STEPS = 20
TOLERANCE = 1e-5
"""Sums of a few ranks in another order differ in the last bits, and the steps make more of it."""


def one_by_one(model: nn.Module) -> None:
    """A blocking call per parameter: the simplest way, with as many round trips as there are parameters."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def all_at_once(model: nn.Module) -> None:
    """One call: gradients are copied into one vector and back."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, averaged in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(averaged.view_as(gradient))


def all_started_then_awaited(model: nn.Module) -> None:
    """A call per parameter, none of which waits for the one before."""
    works = [(parameter, dist.all_reduce(parameter.grad, async_op=True)) for parameter in model.parameters()]
    for parameter, work in works:
        work.wait()
        parameter.grad /= dist.get_world_size()


def train(average: Callable[[nn.Module], None], images: data.Images, batch: int) -> tuple[torch.Tensor, float]:
    """Returns the weights after some steps, and the mean time of averaging per step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = models.build("mlp", seed=0)  # the same on all ranks: no broadcast is needed
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    share = batch // world_size
    averaging = 0.0
    for step in range(WARM_UP_STEPS + STEPS):
        first = (step * batch + rank * share) % (len(images) - share)
        inputs, labels = images.batch(slice(first, first + share))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        dist.barrier()  # so that only averaging is timed, not waiting for a slower rank
        start = time.perf_counter()
        average(model)
        averaging += (time.perf_counter() - start) * (step >= WARM_UP_STEPS)
        optimiser.step()
    return models.flat_weights(model), averaging / STEPS


def main(images: data.Images, batch: int) -> None:
    reference: torch.Tensor | None = None
    for average in (one_by_one, all_at_once, all_started_then_awaited):
        weights, seconds = train(average, images, batch)
        reference = weights if reference is None else reference
        distance = float((weights - reference).abs().max())
        assert distance < TOLERANCE, f"{average.__name__} is {distance} away from one_by_one"
        if dist.get_rank() == 0:
            print(f"{average.__name__:<26} {seconds * 1e6:8.0f} us per step, at most {distance:.1e} apart", flush=True)


if __name__ == "__main__":
    options = parse(__doc__)
    with joined(options.backend):
        main(data.load(options.data, options.fraction).train, options.batch)
