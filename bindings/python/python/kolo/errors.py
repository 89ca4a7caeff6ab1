"""Exceptions of Kolo.

After :class:`Usage`, :class:`Configuration` and :class:`Unsupported` a communicator is as it was; after any other error in
an operation it cannot be used any more, on any rank.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Base class of all errors of Kolo. The text names ranks, operation and remedy; the attributes hold the same for programs.

    Attributes:
        rank: The rank that raises, in the communicator concerned; ``None`` where there is no communicator yet.
        operation: The call, such as ``"all_reduce(1024 x f32, sum)"``; ``None`` or empty outside operations.
        sequence: Number of the operation in its communicator, from 1; ``None`` outside operations.
        peer: The rank that the error is about: it made another call, is lost, or is waited for; ``None`` if there is none.
        code: The stable code at the end of the text, such as ``"K0401"``; ``kolo explain-error K0401`` explains it.
    """

    #: The code of an error that the Python code itself raises.
    _CODE = "K0902"

    rank: int | None
    operation: str | None
    sequence: int | None
    peer: int | None
    code: str

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        operation: str | None = None,
        sequence: int | None = None,
        peer: int | None = None,
        code: str | None = None,
    ) -> None:
        self.code = code or self._CODE
        mark = f" [{self.code}]"
        super().__init__(message if not message or message.endswith(mark) else message + mark)
        self.rank = rank
        self.operation = operation
        self.sequence = sequence
        self.peer = peer

    def __reduce__(self):
        # Pickling keeps the attributes, for errors that leave a worker process.
        return _rebuild, (type(self), str(self), self.rank, self.operation, self.sequence, self.peer, self.code)


def _rebuild(kind, message, rank, operation, sequence, peer, code):
    return kind(message, rank=rank, operation=operation, sequence=sequence, peer=peer, code=code)


class Usage(Error, ValueError):
    """A call that makes no sense: a root out of range, buffers of the wrong length. Nothing was sent."""

    _CODE = "K0101"


class Configuration(Error, ValueError):
    """A setting is missing or wrong."""

    _CODE = "K0201"


class Join(Error):
    """The ranks could not find each other, or do not agree on who is who."""

    _CODE = "K0301"


class Mismatch(Error):
    """The ranks made different calls at the same point."""

    _CODE = "K0401"


class PeerLost(Error, ConnectionError):
    """A peer's process ended or its connection broke."""

    _CODE = "K0501"


class Timeout(Error, TimeoutError):
    """The deadline passed."""

    _CODE = "K0601"


class Aborted(Error):
    """The communicator was aborted earlier, by this rank or another."""

    _CODE = "K0701"


class Revoked(Aborted):
    """A rank called :meth:`Communicator.revoke`; those that live may shrink."""

    _CODE = "K0707"


class Fenced(Aborted):
    """This rank was silent for too long, and the others have gone on without it. It cannot come back to this group."""

    _CODE = "K0708"


class Minority(Aborted):
    """Too few ranks answer to go on. The others may be alive in another part of a network that has been cut."""

    _CODE = "K0709"


class Unsupported(Error, NotImplementedError):
    """A combination that is not supported, for a reason that will not go away with time."""

    _CODE = "K0102"


class Transport(Error):
    """A transport failed in another way."""

    _CODE = "K0801"


class System(Error, OSError):
    """The operating system refused something."""

    _CODE = "K0901"

    def __str__(self) -> str:
        # OSError would build its text from an errno, which this error does not have.
        return str(self.args[0]) if self.args else ""
