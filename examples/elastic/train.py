#!/usr/bin/env python3
"""One rank of a training that ends with the same bits, whichever ranks die on the way.

    python train.py --rank R --ranks P --meet file:///tmp/job --out FOLDER [--model mlp] [--steps 200]
    python train.py --rank R --join --out FOLDER ...             # joins the running job there

A step's batch is cut into a fixed number of micro-batches, the shards. Each rank computes the gradients of its shards,
and `all_reduce_shards` adds all of them along one tree, whichever ranks have them. `disturb.py` starts the ranks, and
kills and stops them.

Writes a line per step to FOLDER/steps-R.jsonl, and in the end the hash of the weights to FOLDER/hash-R.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import kolo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch"))
from training.data import Images, load  # noqa: E402
from training.models import MODELS, build  # noqa: E402

# This call imports half of torch. It is made here so that `crew.py` does that once for all ranks.
torch.use_deterministic_algorithms(True)

SEED = 1
SHARDS = 24  # the same number on 1, 2, 3, 4, 6 and 8 ranks
SHARD_IMAGES = 8
RATE, MOMENTUM = 0.02, 0.9
UP_TO = 64
"""Most ranks there may be."""
LEFT_OUT, TOO_LATE = 3, 4
"""Exit status of a rank that was stopped for so long that the others have gone on without it, and of one that found nobody at work."""


def shard_images(step: int, shard: int, images: int) -> torch.Tensor:
    """Returns the images of a shard, which depend on step and shard alone, not on the rank that computes it."""
    batch = SHARDS * SHARD_IMAGES
    epoch, at = divmod(step * batch + shard * SHARD_IMAGES, images - images % batch)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(SEED + epoch))
    return order[at : at + SHARD_IMAGES]


class Trainer:
    """Model and optimizer as vectors: the whole state of a rank, and the same on all ranks."""

    def __init__(self, model: str, images: Images, comm: kolo.Communicator) -> None:
        self.state = kolo.State(comm)
        self._images = images
        self._model = build(model, SEED)
        self._parameters = list(self._model.parameters())
        self._weights = np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in self._parameters])
        self._velocity = np.zeros_like(self._weights)
        at = 0
        for parameter in self._parameters:
            # The model's parameters are views of the vector.
            parameter.data = torch.from_numpy(self._weights[at : at + parameter.numel()]).view_as(parameter)
            at += parameter.numel()

    def gradient(self, comm: kolo.Communicator) -> np.ndarray:
        """Returns the gradient of the whole batch. It changes no existing state, so it can be repeated with other
        ranks."""
        self.state.share(comm, {"weights": self._weights, "velocity": self._velocity})
        own = comm.own_shards(SHARDS)
        rows = np.empty((len(own), len(self._weights)), np.float32)
        for row, shard in zip(rows, own):
            inputs, labels = self._images.batch(shard_images(self.state.version, shard, len(self._images)))
            loss = torch.nn.functional.cross_entropy(self._model(inputs), labels, reduction="sum") / (SHARDS * SHARD_IMAGES)
            parts = torch.autograd.grad(loss, self._parameters)
            torch.cat([part.reshape(-1) for part in parts], out=torch.from_numpy(row))
        return comm.all_reduce_shards(rows, SHARDS)

    def apply(self, gradient: np.ndarray) -> None:
        self._velocity *= MOMENTUM
        self._velocity += gradient
        self._weights -= RATE * self._velocity
        self.state.advance()

    def hash(self) -> str:
        return hashlib.sha256(self._weights.tobytes() + self._velocity.tobytes()).hexdigest()

    def accuracy(self, images: Images) -> float:
        with torch.no_grad():
            inputs, labels = images.batch(slice(None))
            return (self._model(inputs).argmax(1) == labels).float().mean().item()


def main(arguments: list[str] | None = None) -> int:
    given = options(arguments)
    torch.set_num_threads(1)
    dataset = load(given.data)
    invitation = given.out / "invitation"

    def invite(_change: kolo.Change | None = None) -> None:
        """Lets the present rank 0 write an invitation for newcomers."""
        if group.comm.rank == 0:
            replace(invitation, group.comm.accept())

    try:
        comm = kolo.init(join=f"file://{invitation}") if given.join else join_all(given)
    except kolo.Join as error:
        print(f"rank {given.rank}: {error}")
        return TOO_LATE
    trainer = Trainer(given.model, dataset.train, comm)
    state, group = trainer.state, kolo.Survivors(comm, up_to=UP_TO, on_change=invite)
    invite()
    try:
        with group, open(given.out / f"steps-{given.rank}.jsonl", "w", buffering=1) as log:
            while state.version is None or state.version < given.steps:
                group.admit()  # newcomers come in here; `gradient` gives them weights and velocity
                trainer.apply(group.run(trainer.gradient))
                told = {"step": state.version, "ranks": group.comm.world_size, "rank": group.comm.rank, "time": time.time()}
                log.write(json.dumps(told) + "\n")
    except kolo.Fenced as error:
        print(f"rank {given.rank}: {error}")
        return LEFT_OUT
    replace(given.out / f"hash-{given.rank}", trainer.hash())
    print(f"rank {given.rank}: {state.version} steps, accuracy {trainer.accuracy(dataset.test):.3f}, {trainer.hash()[:16]}")
    return 0


def join_all(given: argparse.Namespace) -> kolo.Communicator:
    return kolo.init(given.meet, rank=given.rank, world_size=given.ranks)


def replace(path: Path, text: str) -> None:
    """Writes a file atomically."""
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    partial.touch(0o600)
    partial.write_text(text)
    partial.rename(path)


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, help="how many there are at first")
    parser.add_argument("--meet", help="URL at which the first ranks meet")
    parser.add_argument("--join", action="store_true", help="join those that work in the folder already")
    parser.add_argument("--out", type=Path, required=True, help="folder for steps and hash")
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
