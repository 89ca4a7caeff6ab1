"""The ranks of a run: how each kind of run shares weights, gradients and measurements.

`Alone` is the sequential run, `TorchTeam` any backend of torch.distributed, `MpiTeam` MPI through mpi4py.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from .backends import require
from .session import leave


class Team(Protocol):
    """The communication that training needs."""

    rank: int
    size: int

    def broadcast(self, values: torch.Tensor) -> None:
        """Copies rank 0's values to every rank, in place."""

    def average(self, values: torch.Tensor) -> None:
        """Replaces the values by their mean over all ranks, and waits for it."""

    def barrier(self) -> None:
        """Waits for all ranks."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value, by rank, on every rank."""

    def close(self) -> None:
        """Leaves the team."""


class Alone:
    """A single process without communication."""

    rank = 0
    size = 1

    def broadcast(self, values: torch.Tensor) -> None:
        pass

    def average(self, values: torch.Tensor) -> None:
        pass

    def barrier(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def close(self) -> None:
        pass


class TorchTeam:
    """The default process group of torch.distributed; a launcher such as torchrun assigns the ranks."""

    def __init__(self, backend: str) -> None:
        require(backend)
        dist.init_process_group(backend)
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def broadcast(self, values: torch.Tensor) -> None:
        dist.broadcast(values, src=0)

    def average(self, values: torch.Tensor) -> None:
        dist.all_reduce(values)  # and divide: Gloo's own AVG does the same
        values.div_(self.size)

    def barrier(self) -> None:
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        leave()


class MpiTeam:
    """MPI_COMM_WORLD; mpirun assigns the ranks."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()

    def broadcast(self, values: torch.Tensor) -> None:
        self._comm.Bcast(values.numpy(), root=0)

    def average(self, values: torch.Tensor) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, values.numpy(), op=self._mpi.SUM)
        values.div_(self.size)

    def barrier(self) -> None:
        self._comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        return self._comm.allgather(value)

    def close(self) -> None:
        self._mpi.Finalize()


def form(backend: str) -> Team:
    """Joins the other ranks."""
    if backend == "none":
        return Alone()
    if backend == "mpi":
        return MpiTeam()
    return TorchTeam(backend)
