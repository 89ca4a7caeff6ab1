"""Handles: texts by which processes find and authenticate each other's listeners.

A program passes a :class:`Handle` on by its own means. The handle says where a listener is, whose it is, and the key that opens it. A
listener answers only processes that have the key. Both sides prove that they know it, so a process that has got the port of a dead
member is not mistaken for that member.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from .errors import Usage

_MARK = "kolo1"
_MAC_BYTES = 32
NONCE_BYTES = 16
#: The longest message between two members, in bytes: a notice of rank 0, or the list of missing members.
FRAME_BYTES = 1 << 16


class Handle(NamedTuple):
    """The address, identity and key of a member's listener."""

    number: int
    incarnation: str
    key: bytes
    port: int
    pid: int
    host: str
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parses the text that :meth:`__str__` made, possibly on another host."""
        try:
            mark, number, incarnation, key, port, pid, host, addresses = text.split(":", 7)
            if mark != _MARK or len(incarnation) != 16 or len(key) != 32 or not 0 < int(port) < 1 << 16:
                raise ValueError
            return cls(
                int(number), incarnation, bytes.fromhex(key), int(port), int(pid), host, tuple(addresses.split(","))
            )
        except (ValueError, AttributeError):
            raise Usage(f"{str(text)[:8]!r}...: this is not a handle that Kolo made") from None

    def __str__(self) -> str:
        # The number comes first, so that sorted handles are in the order of the ranks that their processes began with.
        begin = f"{_MARK}:{self.number:06}:{self.incarnation}:{self.key.hex()}"
        return f"{begin}:{self.port}:{self.pid}:{self.host}:{','.join(self.addresses)}"

    def who(self) -> str:
        """Names the process in error messages, without the key."""
        return f"process {self.pid} on {self.host}"


def answer_context(nonces: bytes, told: int) -> bytes:
    return b"answer" + nonces + told.to_bytes(4, "big")


def framed(key: bytes, context: bytes, body: bytes) -> bytes:
    mac = hmac.new(key, context + body, hashlib.sha256).digest()
    return len(body).to_bytes(4, "big") + body + mac


def unframed(key: bytes, context: bytes, heard: bytes) -> tuple[bytes, bytes] | None:
    """Returns the body of the first frame and the bytes behind the frame; ``None`` while the frame is incomplete.

    Raises ``ValueError`` if the frame does not come from a process with the key.
    """
    if len(heard) < 4:
        return None
    length = int.from_bytes(heard[:4], "big")
    if length > FRAME_BYTES:
        raise ValueError("not a member's frame")
    if len(heard) < 4 + length + _MAC_BYTES:
        return None
    body, mac = heard[4 : 4 + length], heard[4 + length : 4 + length + _MAC_BYTES]
    if not hmac.compare_digest(mac, hmac.new(key, context + body, hashlib.sha256).digest()):
        raise ValueError("another key")
    return body, heard[4 + length + _MAC_BYTES :]
