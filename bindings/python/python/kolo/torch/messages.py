"""Send and receive.

The i-th send from one rank to another with a tag meets the i-th receive of that pair with that tag.
"""

from __future__ import annotations

from ..errors import Error
from ..memory import SIZES
from .engine import Engine
from .errors import translate
from .operations import _only
from .tensors import moved_as, room_for, staged


class Messages:
    """Messages between two ranks; ``self._engine`` runs them. All return works."""

    _engine: Engine

    def send(self, tensors, dst: int, tag: int = 0):
        tensor = _only(tensors, "send")
        return self._started(True, dst, staged(tensor), tag, tensor, None)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._receive(src, _only(tensors, "recv"), tag)

    def recv_anysource(self, tensors, tag: int = 0):
        return self._receive(None, _only(tensors, "recv"), tag)

    def _receive(self, src: int | None, tensor, tag: int):
        room = room_for(tensor)
        after = None if room is tensor else lambda: tensor.copy_(room, non_blocking=True)
        return self._started(False, src, room, tag, tensor, after)

    def _started(self, send: bool, peer: int | None, buffer, tag: int, tensor, after):
        kind, count = moved_as(buffer)
        transfer = (send, peer, buffer.data_ptr(), count * SIZES[kind], kind, tag)
        try:
            work = self._engine.comm.start_transfer(transfer, buffer)
        except Error as error:
            raise translate(error) from None
        return self._engine.started((work,), None, [tensor], after)
