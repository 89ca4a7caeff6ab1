"""What a group and its backend share: the communicator, its time-out, and how calls are made on it."""

from __future__ import annotations

import atexit
import time
import weakref
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import _allow_inflight_collective_as_graph_input, _register_work

from .. import _kolo
from ..errors import Error, Unsupported, Usage
from . import streams
from .completion import Completion
from .errors import translate
from .profiling import Span, is_on
from .streams import Launcher
from .work import KoloWork

_ZERO = timedelta(0)

#: How long an exit waits for threads of ours that complete futures.
_JOIN_SECONDS = 5.0


class Engine:
    """One communicator in use by torch."""

    #: What its calls hand out.
    work = KoloWork
    __slots__ = (
        "comm",
        "name",
        "ranks",
        "born_ns",
        "seconds",
        "completion",
        "collected",
        "sequence",
        "at_first",
        "failure",
        "launcher",
        "__weakref__",
    )

    def __init__(self, comm: _kolo.Comm, seconds: float, name: str, ranks: list[int]) -> None:
        self.comm = comm
        #: What its flight record tells: the group's name, its ranks in the world, and when its clock began.
        self.name = name
        self.ranks = ranks
        self.born_ns = time.time_ns()
        #: Limit of every operation that has none of its own.
        self.seconds = seconds
        self.completion = Completion(name)
        #: Works since the start of coalescing; ``None`` outside.
        self.collected: list[KoloWork] | None = None
        #: Collectives called so far, and what is called at the first.
        self.sequence = 0
        self.at_first = None
        #: The first error that was the communicator's, and not the caller's. Never raised, so that it holds no frames.
        self.failure: Error | None = None
        #: ``None`` where no tensor can be on a GPU, so that nobody asks.
        self.launcher = Launcher(name) if streams.cuda.available() else None
        if self.launcher is not None:
            streams.cuda.engines.add(self)
        _live.add(self)

    def collective(self, name: str, arguments: tuple, opts, owner, outputs: list, after=None, inputs=None):
        """Runs a collective, or starts it if ``opts`` do not say that the caller waits.

        ``arguments`` are those of ``Comm.start``; ``after`` is called once the outputs of Kolo are complete; ``inputs``
        are what the caller gave, if that is not the outputs.
        """
        self.sequence += 1
        if self.at_first is not None:
            self._check_once()
        waits = opts is not None and self.collected is None and not getattr(opts, "asyncOp", True)
        if is_on() or (self.launcher is not None and self.launcher.is_needed((*outputs, *(inputs or ())))):
            work = self.started(name, (partial(self.comm.start, arguments, owner),), opts, outputs, after, inputs)
            return work.wait() and None if waits else work
        try:
            if not waits:
                works = (self.comm.start(arguments, owner),)
                return self._handed_out(self.work(self, works, outputs, after, self.limit(opts)))
            # Not as a blocking call: in torch, other ranks may start what this one waits for.
            self.comm.start_and_wait(arguments, self.limit(opts))
        except Error as error:
            raise self.failed(error) from None
        if after is not None:
            after()
        return None

    def irregular(self, name: str, arguments: tuple, opts, owner, outputs: list, after=None, inputs=None):
        """As :meth:`collective`, with blocks of unequal length; ``arguments`` are those of ``Comm.start_v``."""
        return self.several(name, [partial(self.comm.start_v, arguments, owner)], opts, outputs, after, inputs)

    def several(self, name: str, starts: list, opts, outputs: list, after=None, inputs=None):
        """Starts several collectives that make one call, and waits for them if the caller does."""
        self.sequence += 1
        if self.at_first is not None:
            self._check_once()
        work = self.started(name, tuple(starts), opts, outputs, after, inputs)
        if self.collected is None and not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def started(self, name: str, starts: tuple, opts, outputs: list, after, inputs=None) -> KoloWork:
        """Calls ``starts``, which give works of the compiled half, and makes one work of them."""
        given = outputs if inputs is None else inputs
        span = Span(name, given) if is_on() else None
        try:
            if self.launcher is None:
                works = tuple(start() for start in starts)
            else:
                event = streams.cuda.mark((*given, *outputs))
                works = tuple(self.launcher.start(event, start) for start in starts)
        except Error as error:
            if span is not None:
                span.end_with((), 0.0)
            raise self.failed(error) from None
        limit = self.limit(opts)
        if span is not None:
            span.end_with(works, limit)
        return self._handed_out(self.work(self, works, outputs, after, limit, span))

    def begin(self, start):
        """Starts something on the host's memory, after what was called before."""
        return start() if self.launcher is None else self.launcher.start(None, start)

    def _handed_out(self, work: KoloWork) -> KoloWork:
        if self.collected is not None:
            self.collected.append(work)
        if _allow_inflight_collective_as_graph_input():
            for tensor in work._outputs:
                _register_work(tensor, work)
        return work

    def _check_once(self) -> None:
        check, self.at_first = self.at_first, None
        check()

    def failed(self, error: Error) -> Error:
        """The error for the caller; another like it is kept, to answer what the group failed of."""
        if self.failure is None and not isinstance(error, (Usage, Unsupported)):
            self.failure = translate(error)
        return translate(error)

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
        if self.launcher is not None:
            self.launcher.close(_JOIN_SECONDS)
        self.comm.close()
        self.completion.close(_JOIN_SECONDS)
        _live.discard(self)


_live: weakref.WeakSet[Engine] = weakref.WeakSet()


def living() -> list[Engine]:
    """Those that have not been closed."""
    return list(_live)


@atexit.register
def _close_all() -> None:
    # Threads that wake up in an interpreter that is gone would take the process down with them.
    for engine in list(_live):
        try:
            engine.close()
        except Exception:
            pass  # a child of fork has nothing to close, and nobody is left to be told
