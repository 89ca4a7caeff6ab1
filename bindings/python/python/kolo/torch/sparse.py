"""All-reduce of sparse tensors: every rank gathers the entries of all ranks and adds them up.

The ranks first gather their numbers of entries, in the order of all calls of the group. The entries follow once these numbers are
known, when a rank may have called other operations. So a thread gathers them, on a communicator of its own, where calls of this
kind alone have an order.
"""

from __future__ import annotations

import queue
import threading
from functools import partial

import torch

from ..errors import Error, Timeout
from ..numbers import ALL_GATHER, AVG, I64, SUM
from .errors import Unsupported, as_error
from .tensors import host_room, moved_as

#: The number of the communicator among those that :meth:`Comm.group` numbers; the backend numbers no other.
_NUMBER = 0


def all_reduce(engine, tensor: torch.Tensor, op: int, opts):
    """All-reduces in place."""
    if op not in (SUM, AVG) or not tensor.device.type == "cpu":
        raise Unsupported("sparse tensors can only be all-reduced, with SUM or AVG, on the CPU")
    whole = tensor.coalesce()
    entries = Entries(engine, whole.indices().t().contiguous(), whole.values().contiguous(), engine.limit(opts))

    def finish() -> None:
        indices, values = entries.all_indices.t(), entries.all_values
        total = torch.sparse_coo_tensor(indices, values, tensor.shape, device="cpu").coalesce()
        with torch.no_grad():
            tensor.copy_(total / engine.comm.world_size if op == AVG else total)

    return engine.several("all_reduce", [entries.begin], opts, [tensor], finish, [entries.values])


class Entries:
    """The entries of all ranks, as a work with the same methods as a work of the compiled module."""

    def __init__(self, engine, indices: torch.Tensor, values: torch.Tensor, seconds: float) -> None:
        self._engine = engine
        self.indices, self.values = indices, values
        self.all_indices = self.all_values = None
        self._seconds = seconds
        self._own = torch.tensor([values.size(0)], dtype=torch.int64, device="cpu")
        self._numbers = host_room(engine.comm.world_size, torch.int64)
        self._over = threading.Event()
        self._error: Exception | None = None
        #: The error for the end of a caller's limit, which came before that of the thread's own.
        self._late: Timeout | None = None

    def begin(self) -> Entries:
        """Gathers the numbers of entries, and lets the thread do the rest."""
        arguments = (ALL_GATHER, self._own.data_ptr(), self._numbers.data_ptr(), 1, I64, SUM, 1.0, 0)
        self._counted = self._engine.comm.start(arguments, (self._own, self._numbers))
        if self._engine.gatherer is None:
            self._engine.gatherer = Gatherer(self._engine.name)
        self._engine.gatherer.add(self)
        return self

    def gather(self, gatherer: Gatherer) -> None:
        """Runs on the thread. A failure ends the group, as that of any other operation."""
        try:
            self._counted.wait(self._seconds)
            counts = self._numbers.tolist()
            comm = gatherer.communicator(self._engine.comm, self._seconds)
            self.all_indices = self._gather(comm, self.indices, counts)
            self.all_values = self._gather(comm, self.values, counts)
        except Exception as error:
            self._error = self._late or error
            if isinstance(error, Error):
                self._engine.abort(str(self._error))
        self._over.set()

    def _gather(self, comm, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        room = host_room((sum(counts), *rows.shape[1:]), rows.dtype)
        kind, _ = moved_as(rows)
        width = moved_as(rows.new_empty((1, *rows.shape[1:])))[1]
        own = [rows.size(0) * width]
        elements = [count * width for count in counts]
        arguments = (ALL_GATHER, rows.data_ptr(), own, room.data_ptr(), elements, kind, SUM, 1.0, 0)
        comm.start_v(arguments, (rows, room)).wait(self._seconds)
        return room

    def wait(self, seconds: float) -> None:
        # The thread keeps the operation's own limit.
        if not self._over.wait(seconds if seconds < self._seconds else None):
            self.time_out(seconds)
            # The thread notices the abort.
            self._over.wait()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._over.is_set()

    def time_out(self, seconds: float) -> None:
        """Ends the group, since the caller's limit has passed. The thread ends this operation."""
        if self._late is None and not self._over.is_set():
            rank = self._engine.comm.rank
            self._late = Timeout(f"rank {rank}, all_reduce of a sparse tensor: not finished after {seconds:.1f} s")
            self._engine.abort(str(self._late))

    def exception(self):
        return None if self._error is None else as_error(self._error)


class Gatherer:
    """The thread that gathers the entries of a group's sparse tensors, in the order of the calls."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._comm = None
        self._thread = threading.Thread(target=self._run, name=f"kolo-sparse-{name}", daemon=True)
        self._thread.start()

    def add(self, entries: Entries) -> None:
        self._queue.put(entries)

    def communicator(self, comm, seconds: float):
        """Returns the communicator of these calls; makes it at the first one, when all ranks are here."""
        if self._comm is None:
            self._comm = comm.group(list(range(comm.world_size)), seconds, _NUMBER)
        return self._comm

    def abort(self, reason: str) -> None:
        if self._comm is not None and not self._comm.closed:
            self._comm.abort(reason)

    def close(self, seconds: float) -> None:
        """Ends the thread after the calls so far, for which other ranks may wait."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._comm is not None:
            self._comm.close()

    def _run(self) -> None:
        while (entries := self._queue.get()) is not None:
            entries.gather(self)
            del entries
