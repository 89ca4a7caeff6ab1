"""Send and receive."""

from __future__ import annotations

from ..errors import Error
from .engine import Engine
from .errors import translate
from .operations import _only
from .tensors import moved_as, room_for, staged


class Messages:
    """Messages between two ranks; ``self._engine`` runs them. All return works."""

    _engine: Engine

    def send(self, tensors, dst: int, tag: int = 0):
        tensor = _only(tensors, "send")
        source = staged(tensor)
        kind, count = moved_as(source)
        return self._started(lambda transfers: transfers.start(
            True, dst, source.data_ptr(), count, kind, tag, source
        ), [tensor], None)

    def recv(self, tensors, src: int, tag: int = 0):
        tensor = _only(tensors, "recv")
        room = room_for(tensor)
        kind, count = moved_as(room)
        after = None if room is tensor else lambda: tensor.copy_(room, non_blocking=True)
        return self._started(lambda transfers: transfers.start(
            False, src, room.data_ptr(), count, kind, tag, room
        ), [tensor], after)

    def recv_anysource(self, tensors, tag: int = 0):
        tensor = _only(tensors, "recv")
        room = room_for(tensor)
        kind, count = moved_as(room)
        after = None if room is tensor else lambda: tensor.copy_(room, non_blocking=True)
        return self._started(lambda transfers: transfers.start_any(
            room.data_ptr(), count, kind, tag, room
        ), [tensor], after)

    def _started(self, start, outputs: list, after):
        try:
            return self._engine.started((start(self._engine.transfers),), None, outputs, after)
        except Error as error:
            raise translate(error) from None
