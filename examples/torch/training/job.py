"""One training run as data: its parameters and its result. Both travel between processes as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """One run. `backend` is "none" for sequential runs."""

    model: str
    backend: str
    ranks: int
    threads: int
    sync: str
    """`none`, `flat` or `ddp`: see synchronise.py."""
    epochs: int
    batch: int
    """Images per step, all ranks together."""
    fraction: float
    learning_rate: float
    seed: int
    data: str | None
    round: int = 0

    @property
    def label(self) -> str:
        """Returns a short name without the model, unique within a round."""
        if self.backend == "none":
            return f"sequential, {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.backend} {self.sync}, {self.ranks} ranks"


@dataclass
class Epoch:
    """One pass over the training images."""

    seconds: float
    """From the first batch to the last update: of the slowest rank. Testing is not in it."""
    waiting_seconds: float
    """Of it, waiting for gradients: mean of the ranks."""
    loss: float
    """Mean over the epoch's batches and the ranks."""
    accuracy: float
    """Of the test images, after the epoch."""


@dataclass
class Result:
    """The result of a run."""

    job: Job
    parameters: int
    images: int
    steps: int
    source: str
    weights_sha256: str
    """Of all weights at the end; the same on all ranks, or the run fails."""
    epochs: list[Epoch] = field(default_factory=list)


def save(value: Job | Result, path: Path) -> None:
    path.write_text(json.dumps(asdict(value), indent=1))


def load_job(path: Path) -> Job:
    return Job(**json.loads(path.read_text()))


def load_result(path: Path) -> Result:
    raw = json.loads(path.read_text())
    raw["job"] = Job(**raw["job"])
    raw["epochs"] = [Epoch(**epoch) for epoch in raw["epochs"]]
    return Result(**raw)
