"""Handles: how a program tells one process where another one's door is, and how the two know each other there.

A :class:`Handle` is text that a program passes on by its own means. It says where a door is, whose it is, and the key that opens
it; whoever has the handle can come in, and nobody else is answered. Both sides prove that they know the key, so a process that got
the port of a dead one is told from it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from .errors import Usage

_MARK = "kolo1"
_MAC_BYTES = 32
NONCE_BYTES = 16
#: Most bytes of a message between two members: a notice of rank 0, or who is missing.
FRAME_BYTES = 1 << 16


class Handle(NamedTuple):
    """Where a member is found."""

    number: int
    incarnation: str
    key: bytes
    port: int
    pid: int
    host: str
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Handle:
        """From what :meth:`__str__` gave, on another host perhaps."""
        try:
            mark, number, incarnation, key, port, pid, host, addresses = text.split(":", 7)
            if mark != _MARK or len(incarnation) != 16 or len(key) != 32 or not 0 < int(port) < 1 << 16:
                raise ValueError
            return cls(
                int(number), incarnation, bytes.fromhex(key), int(port), int(pid), host, tuple(addresses.split(","))
            )
        except (ValueError, AttributeError):
            raise Usage(f"{str(text)[:8]!r}...: this is no handle that Kolo made") from None

    def __str__(self) -> str:
        # The number comes first, so that sorted handles are in the order of the ranks that their processes began with.
        begin = f"{_MARK}:{self.number:06}:{self.incarnation}:{self.key.hex()}"
        return f"{begin}:{self.port}:{self.pid}:{self.host}:{','.join(self.addresses)}"

    def who(self) -> str:
        """For messages: without the key."""
        return f"process {self.pid} on {self.host}"


def answer_context(nonces: bytes, told: int) -> bytes:
    return b"answer" + nonces + told.to_bytes(4, "big")


def framed(key: bytes, context: bytes, body: bytes) -> bytes:
    mac = hmac.new(key, context + body, hashlib.sha256).digest()
    return len(body).to_bytes(4, "big") + body + mac


def unframed(key: bytes, context: bytes, heard: bytes) -> tuple[bytes, bytes] | None:
    """The body of the first frame and what is behind it; ``None`` while it is not whole. Raises ``ValueError`` if it is not the member's."""
    if len(heard) < 4:
        return None
    length = int.from_bytes(heard[:4], "big")
    if length > FRAME_BYTES:
        raise ValueError("no frame of a member")
    if len(heard) < 4 + length + _MAC_BYTES:
        return None
    body, mac = heard[4 : 4 + length], heard[4 + length : 4 + length + _MAC_BYTES]
    if not hmac.compare_digest(mac, hmac.new(key, context + body, hashlib.sha256).digest()):
        raise ValueError("another key")
    return body, heard[4 + length + _MAC_BYTES :]
