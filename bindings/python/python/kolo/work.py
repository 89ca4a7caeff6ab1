"""The arguments of collective calls, and the handles of started ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from . import _kolo
from .errors import Usage
from .memory import Memory, copy_back
from .numbers import OPS, PREMUL_SUM


def operator(name: str, factor: float = 1.0) -> int:
    """Returns the number of an operator. Refuses a factor that the operator would not use."""
    if callable(name):
        raise Usage("user-defined operators are for blocking all_reduce, reduce, reduce_scatter, scan and exscan")
    number = OPS.get(name)
    if number is None:
        raise Usage(f"unknown operator '{name}'; expected one of {', '.join(OPS)}")
    if number != PREMUL_SUM:
        check_no_factor(name, factor)
    return number


def check_no_factor(op, factor: float) -> None:
    """Refuses a factor other than 1 for an operator that has none."""
    if factor != 1.0:
        raise Usage(f"factor is {factor!r}, but only the operator 'premul_sum' multiplies by it, and this is {op!r}")


class Call:
    """The arguments of a collective, and the objects that keep its memory alive."""

    __slots__ = ("arguments", "backs", "owner")

    def __init__(
        self, collective: int, input: Memory, output: Memory, count: int, op: int, factor: float, root: int
    ) -> None:
        kind = (input if output.owner is None else output).type
        if not 0 <= root <= 0xFFFF_FFFF:
            raise Usage(f"root is {root}, but ranks count from 0")
        self.arguments = (collective, input.address, output.address, count, kind, op, factor, root)
        self.owner = (input.owner, output.owner)
        self.backs = (output.back,) if output.back else ()


#: A started operation.
Work = _kolo.Work


class Staged(Work):
    """A started operation whose outputs are not contiguous; the first ``wait`` that succeeds copies the results to them."""

    __slots__ = ("_backs", "_lock")

    def __new__(cls, work, out, seconds: float, backs: tuple) -> Staged:
        self = super().__new__(cls, work, out, seconds)
        self._backs, self._lock = backs, threading.Lock()
        return self

    def wait(self, timeout: float | None = None):
        out = super().wait(timeout)
        with self._lock:
            # If a copy fails, the next wait repeats it, and so does not take the output for complete.
            copy_back(self._backs)
            self._backs = ()
        return out


def started(work, out, seconds: float, backs: tuple) -> Work:
    """Returns the handle of a started operation."""
    return Staged(work, out, seconds, backs) if backs else Work(work, out, seconds)


def wait_all(works: Iterable[Work], timeout: float | None = None) -> list:
    """Waits for all works and returns their outputs in order.

    Waits at most ``timeout`` seconds; by default, each work has its communicator's time-out. Raises the error of the first
    :meth:`Work.wait` that fails. The works after it go on, unless their communicator ends with it.
    """
    if timeout is None:
        return [work.wait() for work in works]
    deadline = time.monotonic() + timeout
    return [work.wait(max(deadline - time.monotonic(), 0.0)) for work in works]
