"""One process of a training run: `python -m training.worker JOB.json RESULT.json`.

Rank 0 writes the result, and the weights beside it. Started by launch.py, by torchrun, or by mpirun.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch

from . import data, models
from .job import Job, Result, load_job, save
from .loop import steps_per_epoch, train
from .progress import Progress
from .synchronise import synchroniser
from .team import Team, form


def run(job: Job, team: Team) -> tuple[Result, dict[str, torch.Tensor]]:
    """Trains; returns the result, and the weights after a few steps and at the end."""
    torch.set_num_threads(job.threads)
    dataset = data.load(Path(job.data) if job.data else None, job.fraction)
    # Only rank 0's weights matter: the others receive them by broadcast.
    model = models.build(job.model, job.seed + team.rank)
    steps = steps_per_epoch(job, dataset.train)
    progress = Progress(f"{job.model}  {job.label}", job.epochs * steps, enabled=team.rank == 0)
    early: list[torch.Tensor] = []
    epochs = list(train(job, dataset, synchroniser(job.sync, model, team), team, progress, early))
    weights = models.flat_weights(model)
    digests = team.gather(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
    assert len(set(digests)) == 1, f"weights differ between ranks: {digests}"
    progress.finish(f"loss {epochs[-1].loss:.4f}, accuracy {epochs[-1].accuracy:.2%}")
    result = Result(
        job=job,
        parameters=models.parameter_count(model),
        images=len(dataset.train),
        steps=steps,
        source=dataset.source,
        weights_sha256=digests[0],
        epochs=epochs,
    )
    return result, {"early": early[0], "final": weights}


def main() -> None:
    job_path, result_path = Path(sys.argv[1]), Path(sys.argv[2])
    job = load_job(job_path)
    team = form(job.backend)
    result, weights = run(job, team)
    if team.rank == 0:
        np.savez(result_path.with_suffix(".npz"), **{name: values.numpy() for name, values in weights.items()})
        save(result, result_path)
    team.close()


if __name__ == "__main__":
    main()
