"""The handles that operations of ``torch.distributed`` return to users."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import Error
from . import streams

NO_TIMEOUT = timedelta(0)


class KoloWork(dist.Work):
    """An operation, or several that form one call.

    It makes progress even if no thread waits. ``wait`` returns when the outputs are complete. If results are copied to CUDA
    tensors, ``wait`` only makes the current stream wait for the copies.
    """

    def __init__(
        self, engine, works: tuple, outputs: list, after, seconds: float, span=None, has_messages: bool = False
    ) -> None:
        super().__init__()
        #: Whether it may outlast collectives that were started later.
        self.has_messages = has_messages
        # Keeps the engine alive, so that its connections outlive the operation.
        self._engine = engine
        self._seconds = seconds
        #: The time of the first ``is_completed``, from which the time-out counts if the program only polls.
        self._first_polled: float | None = None
        self._works = works
        self._outputs = outputs
        self._after = after
        self._after_lock = threading.Lock() if after is not None else None
        #: The error of ``after``. The outputs then never hold the results.
        self._after_error: Exception | None = None
        #: An event behind the copies to a device that ``after`` queued, on the stream that it used.
        self._copied = None
        self._span = span
        self._sequence = engine.sequence
        self._future = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Blocks until the operation is complete. Raises a subclass of ``DistBackendError`` on failure and past the time-out."""
        until = time.monotonic() + self._limit(timeout)
        try:
            for work in self._works:
                work.wait(max(until - time.monotonic(), 0.0))
        except Error as error:
            raise self._engine.failed(error) from None
        finally:
            if self._span is not None:
                self._span.wait()
        if self._after_lock is not None:
            self._finish()
            if self._after_error is not None:
                # Without the frames of earlier raises.
                raise self._after_error.with_traceback(None)
        return True

    def _limit(self, timeout: timedelta | None) -> float:
        """Returns the seconds that a call of ``wait`` may take."""
        return timeout.total_seconds() if timeout is not None and timeout > NO_TIMEOUT else self._seconds

    def _finish(self) -> None:
        """Calls ``after`` if no thread has called it yet, and keeps its error, which every later call reports."""
        with self._after_lock:
            after, self._after = self._after, None
            if after is not None:
                try:
                    after()
                    self._copied = streams.cuda.mark(self._outputs)
                except Exception as error:
                    self._after_error = error
        if self._copied is not None:
            streams.cuda.follow(self._copied, self._outputs)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the operation is over. Once the time-out has passed since the first call, the operation has failed."""
        if self._is_over():
            return True
        if self._first_polled is None:
            self._first_polled = time.monotonic()
        if time.monotonic() < self._first_polled + self._seconds:
            return False
        for work in self._works:
            work.time_out(self._seconds)
        return self._is_over()

    def _is_over(self) -> bool:
        """As ``is_completed``, without a limit."""
        if not all(work.done() for work in self._works):
            return False
        # Programs that poll read the outputs next.
        if self._after_lock is not None and self.exception() is None:
            self._finish()
        return True

    def is_success(self) -> bool:
        return self._is_over() and self.exception() is None

    def exception(self):
        for work in self._works:
            error = work.exception() if work.done() else None
            if error is not None:
                return self._engine.failed(error)
        return self._after_error

    def result(self) -> list:
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Returns the sender of a received message."""
        self.wait()
        source = self._works[0].wait(0.0) if len(self._works) == 1 else None
        if source is None:
            raise RuntimeError("only a receive has a source")
        return source

    _source_rank = source_rank

    def _get_sequence_number(self) -> int:
        """Returns the number of the collective in its group, from 1; for a message, the number of the last collective before it."""
        return self._sequence

    def get_future(self) -> torch.futures.Future:
        """Returns a future of the list of outputs, which fails if the operation fails."""
        if self._future is None:
            devices = sorted({t.device for t in self._outputs if t.is_cuda}, key=str)
            over = torch.futures.Future(devices=devices)
            # DDP does not survive an exception that Python sets on a future, but handles one that a callback raises.
            self._future = over.then(self._settle)
            if self._is_over():
                over.set_result(None)
            else:
                self._engine.completion.add(self, over)
        return self._future

    def _settle(self, _over) -> list:
        self.wait()
        return self._outputs


class Finished(dist.Work):
    """A work that is already complete."""

    def __init__(self, outputs: list | None = None) -> None:
        super().__init__()
        self._outputs = [] if outputs is None else outputs

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self):
        return None

    def result(self) -> list:
        return self._outputs

    def get_future(self) -> torch.futures.Future:
        over = torch.futures.Future(devices=sorted({t.device for t in self._outputs if t.is_cuda}, key=str))
        over.set_result(self._outputs)
        return over


