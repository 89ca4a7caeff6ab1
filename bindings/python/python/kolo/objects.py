"""Operations on Python objects, which are sent pickled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from .errors import Usage

#: Bytes of the first message of every object. It holds the object's length, and a short object as a whole.
_FIRST_BYTES = 1024
_LENGTH_BYTES = 8

#: Tags of an object's first message and of the rest. They are reserved, so that no array is mistaken for a part of an object.
FIRST_TAG, _REST_TAG = 1 << 31, 3 << 30
MOST_TAGS = 1 << 30


class Objects:
    """The methods of :class:`kolo.Communicator` that take any object that ``pickle`` can handle, in place of an array.

    Unpickling runs code of the sender's choice, so all ranks must be trusted. An object costs two messages or calls; an array of
    known length costs one.
    """

    __slots__ = ()

    def broadcast_object(self, obj: object = None, root: int = 0) -> object:
        """Returns the object of rank ``root`` on every rank; the other ranks' ``obj`` is ignored."""
        text = _pickled(obj) if self.rank == root else b""
        first = _first(text)
        self.broadcast(first, root)
        length = _length(first)
        if length <= _FIRST_BYTES - _LENGTH_BYTES:
            return obj if self.rank == root else _object(first[_LENGTH_BYTES:])
        rest = bytearray(text) if self.rank == root else bytearray(length)
        self.broadcast(rest, root)
        return obj if self.rank == root else _object(rest)

    def all_gather_object(self, obj: object) -> list:
        """Returns the objects of all ranks, in their order, on every rank."""
        text = _pickled(obj)
        lengths = _numbers(self.world_size)
        self.all_gather(_numbers([len(text)]), lengths)
        room = bytearray(sum(lengths))
        self.all_gather_v(text, room, list(lengths))
        return _objects(room, lengths)

    def gather_object(self, obj: object, root: int = 0) -> list | None:
        """Returns the objects of all ranks on rank ``root``, and ``None`` on the others."""
        text = _pickled(obj)
        is_root = self.rank == root
        lengths = _numbers(self.world_size if is_root else 0)
        self.gather(_numbers([len(text)]), lengths if is_root else None, root)
        room = bytearray(sum(lengths)) if is_root else None
        self.gather_v(text, room, list(lengths), root)
        return _objects(room, lengths) if is_root else None

    def scatter_object(self, objects: Sequence | None = None, root: int = 0) -> object:
        """Returns object r of rank ``root`` on rank r; only rank ``root`` gives ``objects``."""
        texts, lengths = [], None
        if self.rank == root:
            texts = self._texts("objects", objects)
            lengths = _numbers([len(text) for text in texts])
        own = _numbers(1)
        self.scatter(lengths, own, root)
        room = bytearray(own[0])
        self.scatter_v(b"".join(texts) if self.rank == root else None, room, list(lengths or ()), root)
        return _object(room)

    def all_to_all_object(self, objects: Sequence) -> list:
        """Sends object s to each rank s, and returns the objects received from all ranks, in their order."""
        texts = self._texts("objects", objects)
        sent, received = _numbers([len(text) for text in texts]), _numbers(self.world_size)
        self.all_to_all(sent, received)
        room = bytearray(sum(received))
        self.all_to_all_v(b"".join(texts), list(sent), room, list(received))
        return _objects(room, received)

    def all_reduce_object(self, obj: object, op: Callable = add) -> object:
        """Returns ``op(op(object 0, object 1), object 2)`` and so on, on every rank: ``op`` need not commute."""
        return reduce(op, self.all_gather_object(obj))

    def send_object(self, obj: object, to: int, tag: int = 0) -> None:
        """Sends an object to rank ``to``, whose :meth:`recv_object` with this tag takes it. Tags are below 2^30."""
        text = _pickled(obj)
        first = _first(text)
        _check_tag(tag)
        self.send(first, to, FIRST_TAG | tag)
        if len(text) > _FIRST_BYTES - _LENGTH_BYTES:
            self.send(text, to, _REST_TAG | tag)

    def recv_object(self, source: int | None = None, tag: int = 0) -> object:
        """Returns an object that rank ``source`` sent with this tag; with ``None``, from whichever rank sends first."""
        return self.recv_object_from(source, tag)[0]

    def recv_object_from(self, source: int | None = None, tag: int = 0) -> tuple[object, int]:
        """As :meth:`recv_object`, with the rank that sent the object."""
        _check_tag(tag)
        first = bytearray(_FIRST_BYTES)
        sender = self.recv(first, source, FIRST_TAG | tag)
        length = _length(first)
        if length <= _FIRST_BYTES - _LENGTH_BYTES:
            return _object(first[_LENGTH_BYTES:]), sender
        rest = bytearray(length)
        self.recv(rest, sender, _REST_TAG | tag)
        return _object(rest), sender

    def _texts(self, what: str, objects: Sequence | None) -> list[bytes]:
        count = -1 if objects is None else len(objects)
        if count != self.world_size:
            given = "no" if objects is None else count
            raise Usage(f"{given} {what} given, but one per rank is needed: {self.world_size}")
        return [_pickled(obj) for obj in objects]


# These functions import modules of the standard library where they use them, so that importing Kolo stays fast.


def _pickled(obj: object) -> bytes:
    import pickle

    return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)


def _object(text) -> object:
    import pickle

    return pickle.loads(text)


def _objects(room: bytearray, lengths) -> list:
    view, found = memoryview(room), []
    for length in lengths:
        found.append(_object(view[:length]))
        view = view[length:]
    return found


def _first(text: bytes) -> bytearray:
    first = bytearray(_FIRST_BYTES)
    first[:_LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES, "little")
    if len(text) <= _FIRST_BYTES - _LENGTH_BYTES:
        first[_LENGTH_BYTES : _LENGTH_BYTES + len(text)] = text
    return first


def _length(first: bytearray) -> int:
    return int.from_bytes(first[:_LENGTH_BYTES], "little")


def _numbers(values):
    """Returns lengths as an array; if only their number is given, an array of zeros."""
    import array

    return array.array("q", bytes(8 * values) if isinstance(values, int) else values)


def _check_tag(tag: int) -> None:
    if not 0 <= tag < MOST_TAGS:
        raise Usage(f"tag is {tag}, but tags of objects must be 0 or more, and below 2^30")
