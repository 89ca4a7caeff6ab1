"""Summarizes the results of all rounds as one row per model and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from .job import Epoch, Job, Result
from .launch import Weights


@dataclass(frozen=True)
class Row:
    """Medians over all epochs of all rounds, except for loss and accuracy, which are those after the last epoch."""

    job: Job
    parameters: int
    epoch_seconds: float
    fastest_seconds: float
    images: int
    """Of an epoch, over all ranks."""
    speedup: float | None
    """Over the sequential run with one thread; None if there is none."""
    share: float
    """Of the epoch's time that is spent waiting for gradients."""
    loss: float
    accuracy: float
    epochs: list[Epoch]
    """Of the first round."""

    @property
    def images_per_second(self) -> float:
        """Returns the images per second over all ranks."""
        return self.images / self.epoch_seconds

    @property
    def efficiency(self) -> float | None:
        """Returns the speed-up per rank, or per thread of a sequential run."""
        return None if self.speedup is None else self.speedup / (self.job.ranks * self.job.threads)


def rows(results: list[Result]) -> list[Row]:
    """Returns one row per model and configuration, in the order in which they first ran."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.job.model, result.job.label), []).append(result)
    base = {
        model: median(epoch.seconds for result in group for epoch in result.epochs)
        for (model, _), group in groups.items()
        if group[0].job.backend == "none" and group[0].job.threads == 1
    }
    return [_row(group, base.get(model)) for (model, _), group in groups.items()]


def _row(group: list[Result], base: float | None) -> Row:
    epochs = [epoch for result in group for epoch in result.epochs]
    seconds = median(epoch.seconds for epoch in epochs)
    return Row(
        job=group[0].job,
        parameters=group[0].parameters,
        epoch_seconds=seconds,
        fastest_seconds=min(epoch.seconds for epoch in epochs),
        images=group[0].steps * group[0].job.batch,
        speedup=None if base is None else base / seconds,
        share=median(epoch.waiting_seconds / epoch.seconds for epoch in epochs),
        loss=group[0].epochs[-1].loss,
        accuracy=group[0].epochs[-1].accuracy,
        epochs=group[0].epochs,
    )


@dataclass(frozen=True)
class Comparison:
    """Distance of the weights of two runs with the same batches: the largest difference of a weight."""

    model: str
    label: str
    reference: str
    """The other run's label."""
    early: float
    """After a few steps."""
    final: float
    largest_weight: float


def comparisons(weights: dict[tuple[str, str], tuple[Job, Weights]]) -> list[Comparison]:
    """Compares Kolo's runs with those of the other backends with as many ranks, and every run with the sequential one.

    Two sequential runs with different numbers of threads are the yardstick: they, too, differ only in the order of
    additions.
    """
    found: list[Comparison] = []
    for (model, label), (job, ours) in weights.items():
        for (other_model, other_label), (other, theirs) in weights.items():
            peers = job.backend == "kolo" and other.backend in ("gloo", "mpi") and job.ranks == other.ranks
            peers = peers and (job.sync == other.sync or other.backend == "mpi")
            alone = other.backend == "none" and other.threads == 1 and label != other_label
            if model == other_model and (peers or alone):
                early, final = _distance(ours.early, theirs.early), _distance(ours.final, theirs.final)
                found.append(Comparison(model, label, other_label, early, final, float(np.abs(theirs.final).max())))
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())
