"""Kolo as a process group of `torchft <https://github.com/pytorch/torchft>`_. ::

    manager = torchft.Manager(pg=kolo.torchft.ProcessGroupKolo(timeout=timedelta(seconds=10)), ...)
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

try:
    from torchft.process_group import ProcessGroup, create_store_client
except ImportError as problem:
    raise ImportError(f"kolo.torchft needs torchft: pip install torchft ({problem})") from problem

from . import _kolo
from .errors import Error, Usage
from .torch.board import StoreBoard
from .torch.engine import Engine
from .torch.errors import Aborted, translate
from .torch.graphs import keep_out
from .torch.group import KoloBackend, KoloGroup
from .torch.reconfigure import Unjoined, leave
from .torch.work import KoloWork

__all__ = ["ProcessGroupKolo"]

_ALONE = "call configure first, as torchft's Manager does"


class _Work(KoloWork):
    """A work as torchft expects it: after an error of the communicator, ``wait`` returns False, the future fails, and the group
    keeps the error."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        try:
            return super().wait(timeout)
        except Usage:
            raise
        except Error:
            return False

    def _settle(self, _over) -> list:
        super().wait()
        return self._outputs


class _Engine(Engine):
    __slots__ = ()
    work = _Work


class ProcessGroupKolo(KoloGroup, ProcessGroup):
    """A process group for torchft. :meth:`configure` rebuilds it whenever replicas come or go.

    ``timeout`` is the limit of each operation, and of :meth:`configure`. When a replica is lost, works end with ``wait() == False``
    and failing futures, later calls raise, and :meth:`errored` returns the reason, so that torchft's Manager skips the step.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        engine = _Engine(Unjoined(_ALONE), timeout.total_seconds(), "torchft", [0])
        super().__init__(dist.HashStore(), KoloBackend(engine, 0, 1), 0, 1)

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        """Ends the old communicator, and makes one of the ranks that meet at ``host:port/prefix``; each attempt has its own prefix.

        Blocks until all have joined, at most for the time-out. If it raises, it can be called again.
        """
        old = self._engine
        old.abort(f"the process group of replica {replica_id} was reconfigured")
        nobody = _Engine(Unjoined(_ALONE), old.seconds, old.name, [0])
        self._use(nobody)
        leave(old)
        timeout = timedelta(seconds=old.seconds)
        settings = {"KOLO_TIMEOUT": str(old.seconds), "KOLO_JOIN_TIMEOUT": str(old.seconds)}
        try:
            store = create_store_client(store_addr, timeout)
            comm = _kolo.connect_board(StoreBoard(store), rank, world_size, settings)
        except Error as error:
            nobody.failure = translate(error)
            raise translate(error) from None
        ranks = list(range(world_size)) if global_ranks is None else list(global_ranks)
        self._use(_Engine(comm, old.seconds, f"torchft {quorum_id or 0}", ranks))

    def errored(self) -> Exception | None:
        """Returns the first error since :meth:`configure` that requires another :meth:`configure`; ``None`` if there is none."""
        return self._engine.failure

    def abort(self) -> None:
        """Aborts the communicator and all its operations on all ranks; :meth:`configure` makes the next one."""
        super().abort()
        if self._engine.failure is None:
            self._engine.failure = Aborted("abort was called on the process group")

    def rank(self) -> int:
        return self._engine.comm.rank

    def size(self) -> int:
        return self._engine.comm.world_size

    # Torch's C++ calls the methods by these names, also before there is a communicator.

    def getRank(self) -> int:  # noqa: N802
        return 0 if self._engine.comm.closed else self._engine.comm.rank

    def getSize(self) -> int:  # noqa: N802
        return 1 if self._engine.comm.closed else self._engine.comm.world_size

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-kolo"

    def _use(self, engine: Engine) -> None:
        self._engine = self._backend._engine = engine

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine.name})"


keep_out(ProcessGroupKolo, _Work)
