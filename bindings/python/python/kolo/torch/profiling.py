"""Events of the profiler: one per operation, from its start to its end, with the shapes of what goes in."""

from __future__ import annotations

import threading

import torch
from torch._C._profiler import _RecordFunctionFast

is_on = torch.autograd._profiler_enabled

#: Seconds that a wait gives the thread that ends an event.
_END_SECONDS = 5.0


class Span:
    """An event that has begun. The profiler shows it as asynchronous, since it ends on another thread."""

    def __init__(self, name: str, tensors) -> None:
        self._record = _RecordFunctionFast(f"kolo:{name}", list(tensors))
        self._record.__enter__()
        self._over = threading.Event()

    def end(self) -> None:
        self._record.__exit__(None, None, None)
        self._over.set()

    def end_with(self, works: tuple, seconds: float) -> None:
        """Ends when these are over. A thread each, since a receive may outlast what was started after it."""
        threading.Thread(target=self._follow, args=(works, seconds), name="kolo-profiler", daemon=True).start()

    def wait(self) -> None:
        """Returns once the event is in the profile, so that whoever waited for the operation may end the profiler."""
        self._over.wait(_END_SECONDS)

    def _follow(self, works: tuple, seconds: float) -> None:
        try:
            for work in works:
                work.wait(seconds)
        except Exception:
            pass  # whoever waits for the operation is told
        self.end()
