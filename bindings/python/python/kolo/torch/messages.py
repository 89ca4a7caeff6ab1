"""Send and receive.

The i-th send from one rank to another with a tag matches the i-th receive of that pair with that tag.
"""

from __future__ import annotations

from functools import partial

from ..memory import SIZES
from .engine import Engine
from .errors import Usage
from .operations import _only
from .tensors import copying_back, moved_as, room_for, staged

#: Messages have tags below this one; those from it on are for ``monitored_barrier``.
TAGS = 0xFFFF_FFFE


class Messages:
    """Messages between two ranks; ``self._engine`` runs them. All methods return works."""

    _engine: Engine

    def send(self, tensors, dst: int, tag: int = 0):
        tensor = _only(tensors, "send")
        return self._started("send", dst, staged(tensor), tag, tensor, None)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._receive("recv", src, _only(tensors, "recv"), tag)

    def recv_anysource(self, tensors, tag: int = 0):
        return self._receive("recvAnySource", None, _only(tensors, "recv"), tag)

    def _receive(self, name: str, src: int | None, tensor, tag: int):
        room = room_for(tensor)
        return self._started(name, src, room, tag, tensor, copying_back(tensor, room))

    def _started(self, name: str, peer: int | None, buffer, tag: int, tensor, after):
        if not 0 <= tag < TAGS:
            raise Usage(f"{name}: the tag is {tag}, but tags are numbers from 0 to {TAGS - 1}")
        kind, count = moved_as(buffer)
        transfer = (name == "send", peer, buffer.data_ptr(), count * SIZES[kind], kind, tag)
        start = partial(self._engine.comm.start_transfer, transfer, buffer)
        return self._engine.started(name, (start,), None, [tensor], after, has_messages=True)
