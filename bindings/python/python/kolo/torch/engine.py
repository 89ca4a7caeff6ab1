"""The engine that a group and its backend share: the communicator, its time-out, and the calls on it."""

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

#: Seconds that an exit waits for the threads that complete futures.
_JOIN_SECONDS = 5.0


class Engine:
    """One communicator in use by torch."""

    #: The class of the works that its calls return.
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
        "gatherer",
        "__weakref__",
    )

    def __init__(self, comm: _kolo.Comm, seconds: float, name: str, ranks: list[int]) -> None:
        self.comm = comm
        #: For the flight record: the group's name, the world ranks of its members, and the time at which its clock began.
        self.name = name
        self.ranks = ranks
        self.born_ns = time.time_ns()
        #: Time limit of operations that have none of their own.
        self.seconds = seconds
        self.completion = Completion(name)
        #: Works since the start of a coalescing region; ``None`` outside.
        self.collected: list[KoloWork] | None = None
        #: The number of collectives called so far, and a function to call at the first one.
        self.sequence = 0
        self.at_first = None
        #: The first error of the communicator, as opposed to the caller's errors. It is never raised, so that it holds no frames.
        self.failure: Error | None = None
        #: The thread that all-reduces sparse tensors, from the first one on.
        self.gatherer = None
        #: ``None`` where no tensor can be on a GPU, so that calls need not check.
        self.launcher = Launcher(comm, name) if streams.cuda.available() else None
        if self.launcher is not None:
            streams.cuda.engines.add(self)
        _live.add(self)

    def collective(self, name: str, arguments: tuple, opts, owner, outputs: list, after=None, inputs=None):
        """Runs a collective if ``opts`` say that the caller waits for it; starts it otherwise.

        ``arguments`` are those of ``Comm.start``; ``after`` is called once Kolo's outputs are complete; ``inputs`` are the caller's
        inputs, if they are not the outputs.
        """
        waits = self._enter(opts)
        if is_on() or (self.launcher is not None and self.launcher.is_needed((*outputs, *(inputs or ())))):
            work = self.started(name, (partial(self.comm.start, arguments, owner),), opts, outputs, after, inputs)
            if not waits:
                return work
            # A subclass of the work may return where this raises.
            KoloWork.wait(work)
            return None
        try:
            if not waits:
                works = (self.comm.start(arguments, owner),)
                return self._handed_out(self.work(self, works, outputs, after, self.limit(opts)))
            # Started, since a blocking call would not match: in torch, other ranks may start the operation without waiting for it.
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
        """Starts several collectives that form one call of torch, and waits for them if the caller does."""
        waits = self._enter(opts)
        work = self.started(name, tuple(starts), opts, outputs, after, inputs)
        if waits:
            KoloWork.wait(work)
        return work

    def started(
        self, name: str, starts: tuple, opts, outputs: list, after, inputs=None, has_messages: bool = False
    ) -> KoloWork:
        """Calls the functions ``starts``, which return works of the compiled module, and makes one work of them."""
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
                span.end_with(())
            raise self.failed(error) from None
        limit = self.limit(opts)
        if span is not None:
            span.end_with(works)
        return self._handed_out(self.work(self, works, outputs, after, limit, span, has_messages))

    def begin(self, start):
        """Starts an operation on host memory, after those that were called before."""
        return start() if self.launcher is None else self.launcher.start(None, start)

    def _handed_out(self, work: KoloWork) -> KoloWork:
        if self.collected is not None:
            self.collected.append(work)
        if _allow_inflight_collective_as_graph_input():
            for tensor in work._outputs:
                _register_work(tensor, work)
        return work

    def _enter(self, opts) -> bool:
        """Counts a collective. Returns whether the caller waits for it."""
        self.sequence += 1
        if self.at_first is not None:
            check, self.at_first = self.at_first, None
            check()
        return opts is not None and self.collected is None and not getattr(opts, "asyncOp", True)

    def failed(self, error: Error) -> Error:
        """Returns the error for the caller. Keeps a copy of the first one, which says why the group failed."""
        if self.failure is None and not isinstance(error, (Usage, Unsupported)):
            self.failure = translate(error)
        return translate(error)

    def limit(self, opts) -> float:
        """Returns the seconds that an operation may take."""
        if opts is None:
            return self.seconds
        timeout = opts.timeout
        return timeout.total_seconds() if timeout > _ZERO else self.seconds

    def abort(self, reason: str) -> None:
        if not self.comm.closed:
            self.comm.abort(reason)
        if self.gatherer is not None:
            self.gatherer.abort(reason)

    def close(self) -> None:
        """Leaves the group; waits a little until the data of started operations has left."""
        if self.launcher is not None:
            self.launcher.close(_JOIN_SECONDS)
        if self.gatherer is not None:
            self.gatherer.close(_JOIN_SECONDS)
        self.comm.close()
        self.completion.close(_JOIN_SECONDS)
        _live.discard(self)


_live: weakref.WeakSet[Engine] = weakref.WeakSet()


def living() -> list[Engine]:
    """Returns the engines that have not been closed."""
    return list(_live)


@atexit.register
def _close_all() -> None:
    # Threads that wake up after the interpreter has ended would crash the process.
    for engine in list(_live):
        try:
            engine.close()
        except Exception:
            pass  # a child of fork has nothing to close, and at exit there is no caller to tell
