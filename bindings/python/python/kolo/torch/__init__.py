"""Kolo as a backend of ``torch.distributed``.

``import kolo.torch`` registers it; from torch 2.14 on ``init_process_group(backend="kolo")`` finds it without. For a
process group that also has a backend of its own for GPUs, use ``"cpu:kolo,cuda:nccl"``.
"""

from __future__ import annotations

import torch.distributed as dist

from .errors import (
    Aborted,
    Configuration,
    Error,
    Join,
    Mismatch,
    PeerLost,
    System,
    Timeout,
    Transport,
    Unsupported,
    Usage,
)
from .graphs import keep_out
from .group import KoloBackend, KoloGroup, create
from .work import Finished, KoloWork

__all__ = [
    "Aborted",
    "Configuration",
    "Error",
    "Join",
    "KoloBackend",
    "KoloGroup",
    "Mismatch",
    "PeerLost",
    "System",
    "Timeout",
    "Transport",
    "Unsupported",
    "Usage",
    "register",
]


def register() -> None:
    """Makes ``"kolo"`` a name that ``init_process_group`` and ``new_group`` know. May be called again."""
    if not dist.is_available() or "KOLO" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("kolo", create, extended_api=True, devices=["cpu", "cuda"])


keep_out(KoloGroup, KoloBackend, KoloWork, Finished)
register()
