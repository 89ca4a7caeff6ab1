"""Looking what message waits, without receiving it."""

from __future__ import annotations

from typing import NamedTuple

from .errors import Usage
from .memory import SIZES, TYPE_NAMES
from .objects import FIRST_TAG, MOST_TAGS

_NAMES = {number: name for name, number in TYPE_NAMES.items()}


class Waiting(NamedTuple):
    """A message that has come and that no receive has asked for."""

    #: Rank that has sent it.
    source: int
    tag: int
    #: Number of elements of type ``dtype``.
    count: int
    #: Name of the type, as NumPy and torch have it. Complex numbers travel as twice as many floats, what Kolo has no type for as ``uint8``.
    dtype: str


class Probing:
    """Probes. Of :class:`kolo.Communicator`."""

    __slots__ = ()

    def probe(self, source: int | None = None, tag: int | None = None, *, wait: bool = True) -> Waiting | None:
        """What array waits from rank ``source``, or any, with ``tag``, or any below 2^31: the source, tag, length and type.

        It stays, for the next :meth:`recv` that names its source and tag; another thread's may come first. What a receive has asked
        for already is not seen. Without ``wait`` it returns at once, ``None`` if there is none; a message may take some such
        calls to be seen. Otherwise it waits at most :attr:`timeout` seconds, as a receive would.
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
        """As :meth:`probe`, for the next object: the rank that has sent it, and its tag, for :meth:`recv_object`."""
        if tag is not None and not 0 <= tag < MOST_TAGS:
            raise Usage(f"tag is {tag}, but tags of objects must be 0 or more, and below 2^30")
        first, last = (0, MOST_TAGS - 1) if tag is None else (tag, tag)
        found = self._look(source, (FIRST_TAG + first, FIRST_TAG + last), wait)
        return None if found is None else (found[0], found[1] - FIRST_TAG)

    def _look(self, source: int | None, tags: tuple[int, int], wait: bool):
        if source is not None and not 0 <= source <= 0xFFFF_FFFF:
            raise Usage(f"the other rank is {source}, but must be 0 or more, and below 2^32")
        return self._comm.probe(source, *tags, self.timeout if wait else None)
