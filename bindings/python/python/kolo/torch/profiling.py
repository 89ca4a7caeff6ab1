"""Events for torch's profiler: one per operation, from its start to its end, with the shapes of its inputs.

An operation ends on a thread that torch's profiler does not know, but an event can only be ended on a thread that it knows.
Torch's own backends therefore move the calling thread's state to the other thread, by C++ functions that Python does not expose.
So this module calls the two functions by their symbols in libc10. Where they are missing, and on processors other than x86-64, an
event ends when the program waits for its operation.
"""

from __future__ import annotations

import ctypes
import math
import platform
import threading
from pathlib import Path

import torch
from torch._C._profiler import _RecordFunctionFast

is_on = torch.autograd._profiler_enabled

#: Seconds that a wait gives the thread that ends an event.
_END_SECONDS = 5.0

#: c10::ThreadLocalDebugInfo::current() and ::_forceCurrentDebugInfo(std::shared_ptr<ThreadLocalDebugInfo>).
_TAKE = "_ZN3c1020ThreadLocalDebugInfo7currentEv"
_PUT = "_ZN3c1020ThreadLocalDebugInfo22_forceCurrentDebugInfoESt10shared_ptrIS0_E"
#: The layout of a std::shared_ptr: pointers to the object and to its counter.
_POINTERS = ctypes.c_void_p * 2


def _functions():
    if platform.machine() != "x86_64":
        return None  # other calling conventions pass the address of a result in a register that ctypes does not set
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        both = getattr(library, _TAKE), getattr(library, _PUT)
    except (OSError, AttributeError):
        return None
    for function in both:
        # The result or argument is a C++ object, so the caller passes the address of its memory.
        function.argtypes, function.restype = [ctypes.c_void_p], None
    return both


_thread_state = _functions()


class Span:
    """An event that has begun; ``end_with`` must be called. The profiler shows the event as asynchronous, since it ends on
    another thread."""

    def __init__(self, name: str, tensors) -> None:
        self._record = _RecordFunctionFast(f"kolo:{name}", list(tensors))
        self._record.__enter__()
        self._over = threading.Event()
        self._state = _POINTERS()
        if _thread_state is not None:
            _thread_state[0](self._state)

    def end_with(self, works: tuple) -> None:
        """Ends the event when these works are complete. Each event has its own thread, since a receive may outlast operations that
        were started after it. The thread sets no limit: only the program's own waits end an operation."""
        if _thread_state is not None:
            threading.Thread(target=self._follow, args=(works,), name="kolo-profiler", daemon=True).start()

    def wait(self) -> None:
        """Returns once the event is in the profile, so that the program may then end the profiler."""
        if _thread_state is None:
            if not self._over.is_set():
                self._over.set()
                self._record.__exit__(None, None, None)
        else:
            self._over.wait(_END_SECONDS)

    def _follow(self, works: tuple) -> None:
        try:
            for work in works:
                work.wait(math.inf)
        except Exception:
            pass  # the program's own wait raises it
        _, put = _thread_state
        # The callee moves the state out of its argument, so nothing is left to free here. The second call frees the state.
        put(self._state)
        self._record.__exit__(None, None, None)
        put(_POINTERS())
        self._over.set()
