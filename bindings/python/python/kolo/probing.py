"""Probes: they tell which message waits, without receiving it."""

from __future__ import annotations

from typing import NamedTuple

from .errors import Usage
from .memory import SIZES, TYPE_NAMES
from .objects import FIRST_TAG, MOST_TAGS

_NAMES = {number: name for name, number in TYPE_NAMES.items()}


class Waiting(NamedTuple):
    """A message that has arrived and that no receive has asked for."""

    #: The rank that sent it.
    source: int
    tag: int
    #: Number of elements of type ``dtype``.
    count: int
    #: NumPy's and torch's name of the type. Complex numbers are sent as twice as many floats, elements of types unknown to Kolo as
    #: ``uint8``.
    dtype: str


class Probing:
    """The probes of :class:`kolo.Communicator`."""

    __slots__ = ()

    def probe(self, source: int | None = None, tag: int | None = None, *, wait: bool = True) -> Waiting | None:
        """Returns the source, tag, length and type of an array that waits to be received.

        Looks for messages from rank ``source`` (``None``: any) with ``tag`` (``None``: any below 2^31). The message stays for the
        next :meth:`recv` that names its source and tag, which may be one of another thread. Messages that receives have already asked
        for are not seen. With ``wait=False`` it returns at once, ``None`` if there is no such message; it may take several such calls
        until a message that was sent is seen. Otherwise it waits at most :attr:`timeout` seconds, as a receive would.
        """
        if tag is None:
            tags = (0, FIRST_TAG - 1)
        elif 0 <= tag <= 0xFFFF_FFFF:
            tags = (tag, tag)
        else:
            raise Usage(f"tag is {tag}, but must be 0 or more, and below 2^32")
        found = self._look(source, tags, wait)
        if found is None:
            return None
        sender, seen, size, number = found
        if number is None:
            return Waiting(sender, seen, size, "uint8")
        return Waiting(sender, seen, size // SIZES[number], _NAMES[number])

    def probe_object(self, source: int | None = None, tag: int | None = None, *, wait: bool = True) -> tuple[int, int] | None:
        """As :meth:`probe`, for the next object: returns the rank that sent it, and its tag, for :meth:`recv_object`."""
        if tag is not None and not 0 <= tag < MOST_TAGS:
            raise Usage(f"tag is {tag}, but tags of objects must be 0 or more, and below 2^30")
        first, last = (0, MOST_TAGS - 1) if tag is None else (tag, tag)
        found = self._look(source, (FIRST_TAG + first, FIRST_TAG + last), wait)
        return None if found is None else (found[0], found[1] - FIRST_TAG)

    def _look(self, source: int | None, tags: tuple[int, int], wait: bool):
        if source is not None and not 0 <= source <= 0xFFFF_FFFF:
            raise Usage(f"the other rank is {source}, but must be 0 or more, and below 2^32")
        return self._comm.probe(source, *tags, self.timeout if wait else None)
