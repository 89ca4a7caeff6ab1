"""Kolo's errors as ``torch.distributed`` raises them: each class is both Kolo's and torch's, with Kolo's text and attributes."""

from __future__ import annotations

import re

import torch.distributed as dist

from .. import errors as kolo
from .._kolo import JOIN_REMEDY, TIMEOUT_REMEDY


class Error(kolo.Error, dist.DistBackendError):
    """See :class:`kolo.Error`."""


class Usage(kolo.Usage, Error):
    """See :class:`kolo.Usage`."""


class Configuration(kolo.Configuration, Error):
    """See :class:`kolo.Configuration`."""


class Join(kolo.Join, Error):
    """See :class:`kolo.Join`."""


class Mismatch(kolo.Mismatch, Error):
    """See :class:`kolo.Mismatch`."""


class PeerLost(kolo.PeerLost, Error):
    """See :class:`kolo.PeerLost`."""


class Timeout(kolo.Timeout, Error):
    """See :class:`kolo.Timeout`."""


class Aborted(kolo.Aborted, Error):
    """See :class:`kolo.Aborted`."""


class Revoked(kolo.Revoked, Aborted):
    """See :class:`kolo.Revoked`."""


class Fenced(kolo.Fenced, Aborted):
    """See :class:`kolo.Fenced`."""


class Minority(kolo.Minority, Aborted):
    """See :class:`kolo.Minority`."""


class Unsupported(kolo.Unsupported, Error):
    """See :class:`kolo.Unsupported`."""


class Transport(kolo.Transport, Error):
    """See :class:`kolo.Transport`."""


class System(kolo.System, Error):
    """See :class:`kolo.System`."""


_TWINS = {
    getattr(kolo, kind.__name__): kind
    for kind in (
        Error,
        Usage,
        Configuration,
        Join,
        Mismatch,
        PeerLost,
        Timeout,
        Aborted,
        Revoked,
        Fenced,
        Minority,
        Unsupported,
        Transport,
        System,
    )
}


#: Names that users of torch did not call: the started forms, and the forms with unequal blocks.
_STARTED = re.compile(r"\b([a-z]+(?:_[a-z]+)*?)(?:_v)?_start\(")
_ADVICE = {
    TIMEOUT_REMEDY: "If the ranks are merely slow, raise the limit with the timeout of init_process_group or new_group",
    JOIN_REMEDY: "raise the limit with the timeout of init_process_group or new_group if the ranks are merely slow",
}


def in_words_of_torch(text: str) -> str:
    """Returns Kolo's text with the names and the advice that users of ``torch.distributed`` know."""
    text = _STARTED.sub(r"\1(", text).replace("barrier()", "barrier")
    for ours, theirs in _ADVICE.items():
        text = text.replace(ours, theirs)
    return text


def as_error(error: Exception) -> kolo.Error:
    """Returns the error itself if it is Kolo's, else one of Kolo's with its text."""
    return error if isinstance(error, kolo.Error) else kolo.Error(str(error))


def translate(error: kolo.Error) -> kolo.Error:
    """Returns the error in the class that ``torch.distributed`` raises."""
    kind = _TWINS.get(type(error))
    if kind is None:
        return error
    text = in_words_of_torch(str(error))
    if kind is Timeout:
        # Users and tools look for these words.
        text = f"Timed out: {text}"
    operation = error.operation and in_words_of_torch(error.operation)
    return kind(text, rank=error.rank, operation=operation, sequence=error.sequence, peer=error.peer, code=error.code)
