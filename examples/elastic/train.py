#!/usr/bin/env python3
"""One rank of a training that ends with the same bits whoever dies on the way.

    python train.py --rank R --ranks P --meet file:///tmp/job --out FOLDER [--model mlp] [--steps 200]

A step's batch is cut into a fixed number of micro-batches, the shards. Each rank computes the gradients of its shards, and
`all_reduce_shards` adds all of them along one tree, whoever has them. `disturb.py` starts the ranks, and kills and stops them.

Writes a line per step to FOLDER/steps-R.jsonl, and in the end the hash of the weights to FOLDER/hash-R.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

import kolo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch"))
from training.data import Images, load  # noqa: E402
from training.models import MODELS, build  # noqa: E402

SEED = 1
SHARDS = 24  # the same number on 1, 2, 3, 4, 6 and 8 ranks
SHARD_IMAGES = 8
RATE, MOMENTUM = 0.02, 0.9
LEFT_OUT = 3
"""Exit status of a rank that was stopped for so long that the others have gone on without it."""


def shard_images(step: int, shard: int, images: int) -> torch.Tensor:
    """Which images a shard has: by step and shard alone, not by the rank that computes it."""
    batch = SHARDS * SHARD_IMAGES
    epoch, at = divmod(step * batch + shard * SHARD_IMAGES, images - images % batch)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(SEED + epoch))
    return order[at : at + SHARD_IMAGES]


class Trainer:
    """Model and optimizer, as vectors: all that a rank knows, and the same on all of them."""

    def __init__(self, model: str, images: Images) -> None:
        self.step = 0
        self._images = images
        self._model = build(model, SEED)
        self._parameters = list(self._model.parameters())
        self._velocity = np.zeros(sum(parameter.numel() for parameter in self._parameters), np.float32)

    def gradient(self, comm: kolo.Communicator) -> np.ndarray:
        """The gradient of the whole batch. Changes nothing, so it can be repeated among others."""
        own = comm.own_shards(SHARDS)
        rows = np.empty((len(own), len(self._velocity)), np.float32)
        for row, shard in zip(rows, own):
            inputs, labels = self._images.batch(shard_images(self.step, shard, len(self._images)))
            loss = torch.nn.functional.cross_entropy(self._model(inputs), labels, reduction="sum") / (SHARDS * SHARD_IMAGES)
            parts = torch.autograd.grad(loss, self._parameters)
            torch.cat([part.reshape(-1) for part in parts], out=torch.from_numpy(row))
        return comm.all_reduce_shards(rows, SHARDS)

    def apply(self, gradient: np.ndarray) -> None:
        self._velocity *= MOMENTUM
        self._velocity += gradient
        at = 0
        with torch.no_grad():
            for parameter in self._parameters:
                part = self._velocity[at : at + parameter.numel()]
                parameter -= RATE * torch.from_numpy(part).view_as(parameter)
                at += parameter.numel()
        self.step += 1

    def hash(self) -> str:
        digest = hashlib.sha256()
        for parameter in self._parameters:
            digest.update(parameter.detach().numpy().tobytes())
        digest.update(self._velocity.tobytes())
        return digest.hexdigest()

    def accuracy(self, images: Images) -> float:
        with torch.no_grad():
            inputs, labels = images.batch(slice(None))
            return (self._model(inputs).argmax(1) == labels).float().mean().item()


def main(arguments: list[str] | None = None) -> int:
    given = options(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dataset = load(given.data)
    trainer = Trainer(given.model, dataset.train)
    group = kolo.Survivors(kolo.init(given.meet, rank=given.rank, world_size=given.ranks))
    try:
        with group, open(given.out / f"steps-{given.rank}.jsonl", "w", buffering=1) as log:
            # Grow comes here, once newcomers can join a running job: they get step, weights and velocity from those that are there.
            while trainer.step < given.steps:
                trainer.apply(group.run(trainer.gradient))
                told = {"step": trainer.step, "ranks": group.comm.world_size, "rank": group.comm.rank, "time": time.time()}
                log.write(json.dumps(told) + "\n")
    except kolo.Fenced as error:
        print(f"rank {given.rank}: {error}")
        return LEFT_OUT
    partial = given.out / f".hash-{given.rank}"
    partial.write_text(trainer.hash())
    partial.rename(given.out / f"hash-{given.rank}")
    print(f"rank {given.rank}: {trainer.step} steps, accuracy {trainer.accuracy(dataset.test):.3f}, {trainer.hash()[:16]}")
    return 0


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meet", required=True, help="URL at which the ranks meet")
    parser.add_argument("--out", type=Path, required=True, help="folder for steps and hash")
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
