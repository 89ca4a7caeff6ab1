"""Calls on their way into the runtime, and works on their way back."""

from __future__ import annotations

from . import _kolo
from .errors import Usage
from .memory import Memory
from .numbers import OPS


def operator(name: str) -> int:
    """The number of an operator."""
    number = OPS.get(name)
    if number is None:
        raise Usage(f"unknown operator '{name}'; known are {', '.join(OPS)}")
    return number


class Call:
    """The arguments of a collective, and what keeps its memory."""

    __slots__ = ("arguments", "owner")

    def __init__(
        self, collective: int, input: Memory, output: Memory, count: int, op: int, factor: float, root: int
    ) -> None:
        kind = (input if output.owner is None else output).type
        if not 0 <= root <= 0xFFFF_FFFF:
            raise Usage(f"root is {root}, but ranks count from 0")
        self.arguments = (collective, input.address, output.address, count, kind, op, factor, root)
        self.owner = (input.owner, output.owner)


class Work:
    """A started operation. It makes progress whether or not anybody waits, and may be dropped at any time."""

    __slots__ = ("_work", "_out", "_seconds", "source")

    #: The sender, once a receive has been waited for; ``None`` for everything else.
    source: int | None

    def __init__(self, work: _kolo.Work, out, seconds: float) -> None:
        self._work = work
        self._out = out
        self._seconds = seconds
        self.source = None

    def wait(self, timeout: float | None = None):
        """Blocks until it is over, at most ``timeout`` seconds (default: the communicator's), and returns its output.

        Raises as the blocking form of the call. Past the time-out the communicator is aborted. May be called again.
        """
        self.source = self._work.wait(self._seconds if timeout is None else timeout)
        return self._out

    def done(self) -> bool:
        """Whether it is over, well or not; never blocks for long."""
        return self._work.done()

    def __repr__(self) -> str:
        return f"<kolo.Work {'over' if self.done() else 'in progress'}>"
