"""Training: every rank computes the gradients of its share of every batch."""

from __future__ import annotations

import time
from typing import Iterator

import torch
from torch import nn

from .data import Dataset, Images
from .job import Epoch, Job
from .models import flat_weights
from .progress import Progress
from .synchronise import Synchroniser
from .team import Team

MOMENTUM = 0.9
TEST_BATCH = 1000
EARLY_STEPS = 10
"""After so many steps weights are put aside: few enough that rounding has not grown yet."""


def train(
    job: Job, dataset: Dataset, sync: Synchroniser, team: Team, progress: Progress, early: list[torch.Tensor]
) -> Iterator[Epoch]:
    """Yields after every epoch. Stores the weights after a few steps in `early`."""
    optimiser = torch.optim.SGD(sync.module.parameters(), lr=job.learning_rate, momentum=MOMENTUM)
    steps = steps_per_epoch(job, dataset.train)
    for epoch in range(job.epochs):
        order = _order(job.seed, epoch, len(dataset.train))
        team.barrier()
        start = time.perf_counter()
        waited = 0.0
        loss_sum = 0.0
        for step in range(steps):
            inputs, labels = dataset.train.batch(_share(order, step, job.batch, team))
            optimiser.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(sync.module(inputs), labels)
            waited += sync.backward(loss)
            optimiser.step()
            loss_sum += loss.item()
            progress.advance()
            if epoch == 0 and step + 1 == min(EARLY_STEPS, steps):
                early.append(flat_weights(sync.module))
        seconds = time.perf_counter() - start
        correct = _correct(sync.module, dataset.test, team)
        per_rank = team.gather((seconds, waited, loss_sum / steps, correct))
        all_seconds, all_waited, losses, all_correct = zip(*per_rank)
        yield Epoch(
            seconds=max(all_seconds),
            waiting_seconds=sum(all_waited) / team.size,
            loss=sum(losses) / team.size,
            accuracy=sum(all_correct) / len(dataset.test),
        )


def steps_per_epoch(job: Job, images: Images) -> int:
    """Counts only whole batches, so that all ranks always have equal shares."""
    steps = len(images) // job.batch
    if steps == 0:
        raise SystemExit(f"{len(images)} images are less than one batch of {job.batch}")
    return steps


def _order(seed: int, epoch: int, count: int) -> torch.Tensor:
    """Returns the order of the images in an epoch: the same on all ranks and in all runs."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1000 + epoch))


def _share(order: torch.Tensor, step: int, batch: int, team: Team) -> torch.Tensor:
    """Returns this rank's part of a batch. The parts of all ranks together are the sequential run's batch."""
    part = batch // team.size
    first = step * batch + team.rank * part
    return order[first : first + part]


@torch.no_grad()
def _correct(module: nn.Module, test: Images, team: Team) -> int:
    """Returns the number of this rank's test images classified correctly. Ranks take the chunks in turn."""
    inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
    inner.eval()
    correct = 0
    for first in range(team.rank * TEST_BATCH, len(test), team.size * TEST_BATCH):
        inputs, labels = test.batch(slice(first, first + TEST_BATCH))
        correct += int((inner(inputs).argmax(dim=1) == labels).sum())
    inner.train()
    return correct
