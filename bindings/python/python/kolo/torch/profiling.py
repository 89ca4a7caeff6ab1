"""Events of the profiler: one per operation, from its start to its end, with the shapes of what goes in.

An operation ends on a thread that torch's profiler does not know, and an event can only be ended on one that it knows.
Torch's own backends take the state of the calling thread along; that is C++, of which Python sees nothing. So the two
functions for it are called by their names in libc10. Where they are missing, events end when somebody waits.
"""

from __future__ import annotations

import ctypes
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
#: A std::shared_ptr: the object and its counter.
_POINTERS = ctypes.c_void_p * 2


def _functions():
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        both = getattr(library, _TAKE), getattr(library, _PUT)
    except (OSError, AttributeError):
        return None
    for function in both:
        # What is returned or taken is of a class, and so lies in memory of the caller's whose address is passed.
        function.argtypes, function.restype = [ctypes.c_void_p], None
    return both


_thread_state = _functions()


class Span:
    """An event that has begun; ``end_with`` must follow. The profiler shows it as asynchronous, since it ends on another
    thread."""

    def __init__(self, name: str, tensors) -> None:
        self._record = _RecordFunctionFast(f"kolo:{name}", list(tensors))
        self._record.__enter__()
        self._over = threading.Event()
        self._state = _POINTERS()
        if _thread_state is not None:
            _thread_state[0](self._state)

    def end_with(self, works: tuple, seconds: float) -> None:
        """Ends when these are over. A thread each, since a receive may outlast what was started after it."""
        if _thread_state is not None:
            threading.Thread(target=self._follow, args=(works, seconds), name="kolo-profiler", daemon=True).start()

    def wait(self) -> None:
        """Returns once the event is in the profile, so that whoever waited for the operation may end the profiler."""
        if _thread_state is None:
            if not self._over.is_set():
                self._over.set()
                self._record.__exit__(None, None, None)
        else:
            self._over.wait(_END_SECONDS)

    def _follow(self, works: tuple, seconds: float) -> None:
        try:
            for work in works:
                work.wait(seconds)
        except Exception:
            pass  # whoever waits for the operation is told
        _, put = _thread_state
        # The callee moves out of what it gets, so that nothing is left to be freed; the second one frees the first.
        put(self._state)
        self._record.__exit__(None, None, None)
        put(_POINTERS())
        self._over.set()
