"""Synchronises gradients over all ranks, and measures how long a rank waits for that.

`Flat`: after the backward pass all gradients are copied into one vector, which is all-reduced and divided by the number
of ranks. Nothing overlaps. The wait is the time inside that call, for the transfer and for slower ranks. The copies are
not counted.

`Ddp`: DistributedDataParallel all-reduces buckets of gradients while the backward pass goes on. The wait is the time
that the backward pass does not hide: from this rank's last gradient until `backward` returns with all of them averaged.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch
from torch import nn

from .team import Team


class Synchroniser(Protocol):
    """Runs the backward pass and averages the gradients."""

    module: nn.Module
    """What to call forward on."""

    def backward(self, loss: torch.Tensor) -> float:
        """Leaves averaged gradients in the parameters; returns the seconds spent waiting for them."""


class Local:
    """A single rank, whose own gradients are the average."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def backward(self, loss: torch.Tensor) -> float:
        loss.backward()
        return 0.0


class Flat:
    """One all-reduce of all gradients after the backward pass."""

    def __init__(self, module: nn.Module, team: Team) -> None:
        self.module = module
        self._team = team
        self._parameters = list(module.parameters())
        self._flat = torch.zeros(sum(p.numel() for p in self._parameters))
        for parameter in self._parameters:
            team.broadcast(parameter.data)

    def backward(self, loss: torch.Tensor) -> float:
        loss.backward()
        gradients = [parameter.grad for parameter in self._parameters]
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self._flat)
        start = time.perf_counter()
        self._team.average(self._flat)
        waited = time.perf_counter() - start
        at = 0
        for gradient in gradients:
            gradient.copy_(self._flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()
        return waited


class Ddp:
    """DistributedDataParallel, which broadcasts the weights itself."""

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self._last_gradient = 0.0
        # Hooks of the parameters run before those of the reducer: the time is taken when the last bucket is about to be
        # sent.
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._stamp)
        self.module = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb)

    def _stamp(self, _: torch.Tensor) -> None:
        self._last_gradient = time.perf_counter()

    def backward(self, loss: torch.Tensor) -> float:
        loss.backward()
        return time.perf_counter() - self._last_gradient


def synchroniser(kind: str, module: nn.Module, team: Team) -> Synchroniser:
    if kind == "none":
        return Local(module)
    if kind == "flat":
        return Flat(module, team)
    return Ddp(module)
