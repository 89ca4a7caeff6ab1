"""The threads that complete futures.

A thread that waits for an operation drives it, so these threads move DDP's buckets while the backward pass runs.

Collectives complete in the order in which all ranks call them, so one thread waits for them in turn. A message may arrive long
after operations that were started later, and these must not wait for it: each message has a thread of its own.

Callbacks run on the thread that completes their future, and may themselves wait for futures of the same group, as PowerSGD's
callbacks do. So before a thread runs callbacks, it makes sure that another thread serves the queue.
"""

from __future__ import annotations

import queue
import threading

import torch

#: Threads that stay when there is nothing to do: one can serve while another runs callbacks.
_KEPT = 2


class Completion:
    """Completes the futures of a group. It starts its threads when the first future is requested."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        #: The threads that wait for a message each.
        self._apart: set[threading.Thread] = set()
        #: The number of threads that are not in callbacks.
        self._serving = 0

    def add(self, work, over: torch.futures.Future) -> None:
        """Completes the future ``over`` once ``work`` is complete."""
        if work.has_messages:
            thread = self._thread(self._complete_apart, work, over)
            with self._lock:
                thread.start()
                self._apart.add(thread)
            return
        with self._lock:
            if self._serving == 0:
                self._start()
        self._queue.put((work, over))

    def close(self, seconds: float) -> None:
        """Ends the threads once their operations are complete. Those of a closed or aborted communicator are."""
        with self._lock:
            threads, apart = list(self._threads), list(self._apart)
        for _ in threads:
            self._queue.put(None)
        for thread in threads + apart:
            if thread is not threading.current_thread():
                thread.join(seconds)

    def _start(self) -> None:
        thread = self._thread(self._run)
        self._threads.add(thread)
        self._serving += 1
        thread.start()

    def _thread(self, target, *arguments) -> threading.Thread:
        # The thread is a daemon, since the interpreter would otherwise wait at exit for an operation that never ends.
        return threading.Thread(target=target, args=arguments, name=f"kolo-futures-{self._name}", daemon=True)

    def _complete_apart(self, work, over: torch.futures.Future) -> None:
        try:
            _wait(work)
            over.set_result(None)
        finally:
            with self._lock:
                self._apart.discard(threading.current_thread())

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, over = item
            _wait(work)
            with self._lock:
                self._serving -= 1
                if self._serving == 0:
                    self._start()
            over.set_result(None)
            # Free these objects now, and not when the next item comes.
            del item, work, over
            with self._lock:
                if self._serving >= _KEPT:
                    break
                self._serving += 1
        else:
            with self._lock:
                self._serving -= 1
        with self._lock:
            self._threads.discard(threading.current_thread())


def _wait(work) -> None:
    try:
        work.wait()
    except Exception:
        pass  # the future's callback raises it again
