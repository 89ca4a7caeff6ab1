"""Tensors on GPUs: when their values are there, without stopping the host.

What a tensor on a device holds is written by kernels that may not have run yet. So the current stream is marked with an
event when an operation is called, and a thread starts the operation once the event is over; the caller goes on at once.
Kolo gets the device address where its driver knows it, else a copy in pinned memory that the same stream makes.

``cuda`` is the only thing here and in the backend that speaks to ``torch.cuda``; tests put another in its place.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref

import torch

from ..errors import Error, Timeout


class Cuda:
    """The devices that torch calls ``cuda``."""

    def __init__(self) -> None:
        #: Engines in use, any of which can be asked whose memory an address is: they have the same driver.
        self.engines: weakref.WeakSet = weakref.WeakSet()

    def available(self) -> bool:
        return torch.cuda.is_available()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether Kolo can be given the address. It cannot where torch's devices are another maker's."""
        engine = next((engine for engine in self.engines if not engine.comm.closed), None)
        return engine is not None and engine.comm.is_gpu_memory(tensor.data_ptr())

    def room(self, tensor: torch.Tensor, shape) -> torch.Tensor:
        """Memory for values like those of a tensor on a device, where Kolo can write."""
        if self.takes(tensor):
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.empty(shape, dtype=tensor.dtype, pin_memory=True)

    def mark(self, tensors):
        """An event after all that is queued on the current stream; ``None`` if no tensor is on a device."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event

    def follow(self, event, tensors) -> None:
        """Makes the current stream wait for an event; the host goes on."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        torch.cuda.current_stream(device).wait_event(event)

    def used_here(self, tensor: torch.Tensor) -> None:
        """Keeps the allocator from giving the memory away before the current stream is through with it."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


cuda = Cuda()


class Launcher:
    """Starts the operations of a group in the order of their calls, each once its event is over."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread: threading.Thread | None = None

    def is_needed(self, tensors) -> bool:
        """Whether a call on these has to wait for a stream, or for calls that do."""
        return self._pending > 0 or any(map(cuda.holds, tensors))

    def start(self, event, start):
        """The work that ``start()`` gives, at once if nothing has to be waited for, else later."""
        with self._lock:
            if event is None and self._pending == 0:
                return start()
            self._pending += 1
            later = Launched()
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
                later.begun(start(), None)
            except Exception as error:
                later.begun(None, error)
            del item, event, start, later
            with self._lock:
                self._pending -= 1


class Launched:
    """A work that may not have been started yet; waits and answers as those of the compiled half."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._work = None
        self._error: Exception | None = None

    def begun(self, work, error: Exception | None) -> None:
        self._work, self._error = work, error
        self._started.set()

    def wait(self, seconds: float):
        deadline = time.monotonic() + seconds
        if not self._started.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise Timeout(f"not started after {seconds:.1f} s: the stream of the GPU has not reached this operation")
        if self._error is not None:
            raise self._error
        return self._work.wait(max(deadline - time.monotonic(), 0.0))

    def done(self) -> bool:
        return self._started.is_set() and (self._work is None or self._work.done())

    def exception(self):
        if not self._started.is_set():
            return None
        if self._error is not None:
            return self._error if isinstance(self._error, Error) else Error(str(self._error))
        return self._work.exception()
