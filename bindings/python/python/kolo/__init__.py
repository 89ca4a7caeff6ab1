"""Kolo: collective communication for CPU clusters.

:func:`init` joins the other processes of the job and returns a :class:`Communicator`, whose operations work on NumPy arrays
and on any other object that exposes its memory. ``import kolo.torch`` makes Kolo a backend of ``torch.distributed``.
"""

from __future__ import annotations

import os

from . import _kolo
from .communicator import Communicator
from .errors import (
    Aborted,
    Configuration,
    Error,
    Fenced,
    Join,
    Minority,
    Mismatch,
    PeerLost,
    Revoked,
    System,
    Timeout,
    Transport,
    Unsupported,
    Usage,
)
from .joining import get_unique_id, init
from .probing import Waiting
from .state import State
from .survivors import Change, Survivors
from .work import Work, wait_all

__version__: str = _kolo.VERSION

__all__ = [
    "Aborted",
    "Change",
    "Communicator",
    "Configuration",
    "Error",
    "Fenced",
    "Join",
    "Minority",
    "Mismatch",
    "PeerLost",
    "Revoked",
    "State",
    "Survivors",
    "System",
    "Timeout",
    "Transport",
    "Unsupported",
    "Usage",
    "Waiting",
    "Work",
    "get_unique_id",
    "init",
    "wait_all",
]

# A child made by fork must neither use nor free its parent's communicators.
os.register_at_fork(after_in_child=_kolo.forked)
