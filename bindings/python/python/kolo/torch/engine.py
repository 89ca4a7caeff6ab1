"""What a group and its backend share: the communicator, its time-out, and how calls are made on it."""

from __future__ import annotations

import atexit
import weakref
from datetime import timedelta

import torch

from .. import _kolo
from ..errors import Error
from .completion import Completion
from .errors import translate
from .work import KoloWork

_ZERO = timedelta(0)
_is_profiling = torch.autograd._profiler_enabled

#: How long an exit waits for threads of ours that complete futures.
_JOIN_SECONDS = 5.0


class Engine:
    """One communicator in use by torch."""

    __slots__ = ("comm", "seconds", "completion", "collected", "__weakref__")

    def __init__(self, comm: _kolo.Comm, seconds: float, name: str) -> None:
        self.comm = comm
        #: Limit of every operation that has none of its own.
        self.seconds = seconds
        self.completion = Completion(name)
        #: Works since the start of coalescing; ``None`` outside.
        self.collected: list[KoloWork] | None = None
        _live.add(self)

    def collective(self, name: str, arguments: tuple, opts, owner, outputs: list, after=None):
        """Runs a collective, or starts it if ``opts`` do not say that the caller waits.

        ``arguments`` are those of ``Comm.start``; ``after`` is called once the outputs of Kolo are complete.
        """
        if _is_profiling():
            with torch.profiler.record_function(f"kolo:{name}"):
                return self._collective(arguments, opts, owner, outputs, after)
        return self._collective(arguments, opts, owner, outputs, after)

    def _collective(self, arguments, opts, owner, outputs, after):
        try:
            if opts is None or self.collected is not None or getattr(opts, "asyncOp", True):
                return self.started((self.comm.start(arguments, owner),), opts, outputs, after)
            # Not as a blocking call: in torch, other ranks may start what this one waits for.
            self.comm.start_and_wait(arguments, self.limit(opts))
        except Error as error:
            raise translate(error) from None
        if after is not None:
            after()
        return None

    def several(self, name: str, calls: list[tuple[tuple, object]], opts, outputs: list, after=None):
        """Starts several collectives that make one call, and waits for them if the caller does."""
        with torch.profiler.record_function(f"kolo:{name}"):
            try:
                works = tuple(self.comm.start(arguments, owner) for arguments, owner in calls)
            except Error as error:
                raise translate(error) from None
            return self._waited_for(self.started(works, opts, outputs, after), opts)

    def _waited_for(self, work: KoloWork, opts) -> KoloWork:
        if self.collected is None and not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def irregular(self, name: str, arguments: tuple, opts, owner, outputs: list, after=None):
        """Runs or starts a collective with blocks of unequal length; ``arguments`` are those of ``Comm.start_v``."""
        with torch.profiler.record_function(f"kolo:{name}"):
            try:
                works = (self.comm.start_v(arguments, owner),)
            except Error as error:
                raise translate(error) from None
            return self._waited_for(self.started(works, opts, outputs, after), opts)

    def started(self, works: tuple, opts, outputs: list, after) -> KoloWork:
        work = KoloWork(self, works, outputs, after, self.limit(opts))
        if self.collected is not None:
            self.collected.append(work)
        return work

    def limit(self, opts) -> float:
        """Seconds that an operation may take."""
        if opts is None:
            return self.seconds
        timeout = opts.timeout
        return timeout.total_seconds() if timeout > _ZERO else self.seconds

    def abort(self, reason: str) -> None:
        if not self.comm.closed:
            self.comm.abort(reason)

    def close(self) -> None:
        """Leaves the group; waits a little until what was started has left."""
        self.comm.close()
        self.completion.close(_JOIN_SECONDS)
        _live.discard(self)


_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Threads that wake up in an interpreter that is gone would take the process down with them.
    for engine in list(_live):
        try:
            engine.close()
        except Exception:
            pass  # a child of fork has nothing to close, and nobody is left to be told
