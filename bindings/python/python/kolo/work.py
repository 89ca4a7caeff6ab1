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


#: A started operation.
Work = _kolo.Work
