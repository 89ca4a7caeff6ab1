"""Sends and receives.

The i-th send from one rank to another meets the i-th receive of that pair, so the transfers of one peer and direction run
in the order of the calls, on a thread of their own; those of different peers and directions do not wait for each other.
"""

from __future__ import annotations

import queue
import threading

from ..errors import Error
from ..memory import SIZES
from .errors import Unsupported


class Transfer:
    """A send or receive on its way; what :class:`KoloWork` waits for."""

    __slots__ = ("_over", "_error", "_owner", "arguments", "source")

    def __init__(self, arguments: tuple, owner, source: int | None) -> None:
        self.arguments = arguments
        self.source = source
        self._owner = owner
        self._over = threading.Event()
        self._error: Error | None = None

    def run(self, comm) -> None:
        try:
            comm.transfer([self.arguments])
        except Error as error:
            self._error = error
        self._owner = None
        self._over.set()

    def wait(self, _seconds: float) -> None:
        self._over.wait()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._over.is_set()

    def exception(self):
        return self._error


class Transfers:
    """The transfers of one communicator."""

    __slots__ = ("_comm", "_name", "_lanes", "_lock")

    def __init__(self, engine, name: str) -> None:
        self._comm = engine.comm
        self._name = name
        self._lanes: dict[tuple[bool, int], tuple[queue.SimpleQueue, threading.Thread]] = {}
        self._lock = threading.Lock()

    def start(self, send: bool, peer: int, address: int, count: int, kind: int, tag: int, owner) -> Transfer:
        transfer = Transfer((send, peer, address, count * SIZES[kind], kind), owner, None if send else peer)
        with self._lock:
            lane = self._lanes.get((send, peer))
            if lane is None:
                lane = self._lanes[send, peer] = self._open(send, peer)
        lane[0].put(transfer)
        return transfer

    def start_any(self, address: int, count: int, kind: int, tag: int, owner) -> Transfer:
        raise Unsupported("receiving from any source is not supported by this version; name the source")

    def _open(self, send: bool, peer: int):
        pending: queue.SimpleQueue = queue.SimpleQueue()
        name = f"kolo-{'send' if send else 'recv'}-{self._name}-{peer}"
        thread = threading.Thread(target=_serve, args=(self._comm, pending), name=name, daemon=True)
        thread.start()
        return pending, thread

    def close(self, seconds: float) -> None:
        with self._lock:
            lanes, self._lanes = list(self._lanes.values()), {}
        for pending, _ in lanes:
            pending.put(None)
        for _, thread in lanes:
            thread.join(seconds)


def _serve(comm, pending: queue.SimpleQueue) -> None:
    while (transfer := pending.get()) is not None:
        transfer.run(comm)
