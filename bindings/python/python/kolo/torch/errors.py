"""Kolo's errors as ``torch.distributed`` raises them: each is both, with Kolo's text and attributes."""

from __future__ import annotations

import torch.distributed as dist

from .. import errors as kolo


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
        Unsupported,
        Transport,
        System,
    )
}


def translate(error: kolo.Error) -> kolo.Error:
    """The same error as ``torch.distributed`` raises it."""
    kind = _TWINS.get(type(error))
    if kind is None:
        return error
    text = str(error)
    if kind is Timeout:
        # The word that users and tools look for, and the other way to set the limit.
        text = f"Timed out: {text} or with the timeout of init_process_group or new_group"
    return kind(text, rank=error.rank, operation=error.operation, sequence=error.sequence, peer=error.peer)
