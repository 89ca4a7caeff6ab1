"""Kolo as a backend of ``torch.distributed``.

``init_process_group(backend="kolo")`` finds the backend by itself. ``import kolo.torch`` registers it, provides the exceptions, and
sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` if a launcher other than torchrun told them. For a process
group with another backend for GPUs, use ``"cpu:kolo,cuda:nccl"``.
"""

from __future__ import annotations

import torch

#: Older versions of torch call other methods on a backend that is written in Python.
_OLDEST = (2, 14)

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST:
    raise ImportError(
        f"kolo.torch needs torch {_OLDEST[0]}.{_OLDEST[1]} or later; this is torch {torch.__version__} "
        f"({torch.__file__}). Upgrade torch; kolo itself works with NumPy without it"
    )

import torch.distributed as dist  # noqa: E402

from .. import launchers  # noqa: E402
from . import patches, rendezvous  # noqa: E402
from .coalesced import Several  # noqa: E402
from .errors import (  # noqa: E402
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
from .graphs import keep_out  # noqa: E402
from .group import DEVICES, KoloBackend, KoloGroup, create  # noqa: E402
from .reconfigure import ReconfigurableBackend, ReconfigurableGroup  # noqa: E402
from .recorder import dump_flight_record  # noqa: E402
from .work import Finished, KoloWork  # noqa: E402

__all__ = [
    "Aborted",
    "Configuration",
    "Error",
    "Fenced",
    "Join",
    "KoloBackend",
    "KoloGroup",
    "Minority",
    "Mismatch",
    "PeerLost",
    "ReconfigurableBackend",
    "ReconfigurableGroup",
    "Revoked",
    "System",
    "Timeout",
    "Transport",
    "Unsupported",
    "Usage",
    "dump_flight_record",
    "register",
]


def register() -> None:
    """Registers the backend ``"kolo"`` for ``init_process_group`` and ``new_group``, and the rendezvous schemes ``kolo://`` and
    ``multicast://``. May be called again."""
    if not dist.is_available() or "KOLO" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("kolo", create, extended_api=True, devices=list(DEVICES))
    rendezvous.install()
    patches.for_all()
    launchers.fill_in()


keep_out(KoloGroup, KoloBackend, ReconfigurableGroup, ReconfigurableBackend, KoloWork, Several, Finished)
register()
