"""Tensors on GPUs: operations wait until their values are ready, without blocking the host.

Kernels that may not have run yet write the values of a tensor on a device. So a call of an operation records an event on the
current stream and returns at once, and a thread starts the operation once the event has completed. Kolo gets the device address if
its driver knows it, else the address of a copy in pinned memory, which the same stream makes.

Only the object ``cuda`` uses ``torch.cuda``, here and in the whole backend; tests replace it.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref

import torch

from ..errors import Timeout
from .errors import as_error


class Cuda:
    """The devices that torch calls ``cuda``."""

    def __init__(self) -> None:
        #: Engines in use. Any of them can tell whether an address is in GPU memory, since all have the same driver.
        self.engines: weakref.WeakSet = weakref.WeakSet()

    def available(self) -> bool:
        return torch.cuda.is_available()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def takes(self, tensor: torch.Tensor) -> bool:
        """Returns whether Kolo can use the tensor's address. It cannot if torch's ``cuda`` devices are of another vendor."""
        engine = next((engine for engine in self.engines if not engine.comm.closed), None)
        return engine is not None and engine.comm.is_gpu_memory(tensor.data_ptr())

    def room(self, tensor: torch.Tensor, shape) -> torch.Tensor:
        """Allocates memory that Kolo can write to, for values like those of a tensor on a device."""
        if self.takes(tensor):
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.empty(shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def mark(self, tensors):
        """Records an event behind all work queued on the current stream; returns ``None`` if no tensor is on a device."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            return None
        # The host sleeps while it waits for the event, since backward passes need the processors.
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def follow(self, event, tensors) -> None:
        """Makes the current stream wait for an event; the host goes on."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        torch.cuda.current_stream(device).wait_event(event)

    def used_here(self, tensor: torch.Tensor) -> None:
        """Keeps the allocator from reusing the memory before the current stream is done with it."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


cuda = Cuda()


class Launcher:
    """Starts the operations of a group in the order of their calls, each once its event has completed."""

    def __init__(self, comm, name: str) -> None:
        self._comm = comm
        self._name = name
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread: threading.Thread | None = None

    def is_needed(self, tensors) -> bool:
        """Returns whether a call on these tensors has to wait for a stream, or for earlier calls that do."""
        return self._pending > 0 or any(map(cuda.holds, tensors))

    def start(self, event, start):
        """Returns the work of ``start()``: calls it at once if there is nothing to wait for, else later on the thread."""
        with self._lock:
            if event is None and self._pending == 0:
                return start()
            self._pending += 1
            later = Launched(self._comm)
            self._queue.put((event, start, later))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"kolo-launch-{self._name}", daemon=True)
                self._thread.start()
        return later

    def close(self, seconds: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._queue.put(None)
            self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            event, start, later = item
            try:
                if event is not None:
                    event.synchronize()
                later.begin(start)
            except Exception as error:
                later.fail(error)
            del item, event, start, later
            with self._lock:
                self._pending -= 1


class Launched:
    """A work that may not have been started yet, with the same methods as a work of the compiled module.

    Once its time-out has passed, it is never started: the program may have freed the memory. An operation that is not started, for this
    reason or another, ends the group: the other ranks do start it, and would take this rank's next operation for it.
    """

    def __init__(self, comm) -> None:
        self._comm = comm
        #: Held while the operation starts, so that it either starts or times out.
        self._lock = threading.Lock()
        #: Set once the operation has a work or an error, which then stays.
        self._settled = threading.Event()
        self._work = None
        self._error: Exception | None = None

    def begin(self, start) -> None:
        """Starts the operation, unless it is late."""
        with self._lock:
            if not self._settled.is_set():
                self._work = start()
                self._settled.set()

    def fail(self, error: Exception) -> bool:
        """Ends an operation that has not been started, and with it the group. Returns whether it did."""
        with self._lock:
            if self._settled.is_set():
                return False
            self._error = error
            # Before the launcher sees that this operation is not started, and goes on to the next.
            if not self._comm.closed:
                self._comm.abort(str(error))
            self._settled.set()
        return True

    def wait(self, seconds: float):
        deadline = time.monotonic() + seconds
        if not self._settled.wait(min(seconds, threading.TIMEOUT_MAX)):
            self.time_out(seconds)
        if self._error is not None:
            raise self._error
        return self._work.wait(max(deadline - time.monotonic(), 0.0))

    def time_out(self, seconds: float) -> None:
        if not self.fail(_not_started(seconds)) and self._work is not None:
            self._work.time_out(seconds)

    def done(self) -> bool:
        return self._settled.is_set() and (self._work is None or self._work.done())

    def exception(self):
        if not self._settled.is_set():
            return None
        if self._error is not None:
            return as_error(self._error)
        return self._work.exception()


def _not_started(seconds: float) -> Timeout:
    return Timeout(f"not started after {seconds:.1f} s: the GPU stream has not reached this operation")
