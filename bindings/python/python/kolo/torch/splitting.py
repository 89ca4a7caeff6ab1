"""Parts of groups that have other backends beside Kolo.

Torch's C++ splits every backend of such a group on every rank. On a rank outside the part, torch's own backends return no part, but
one that is written in Python has to return an object. So Kolo's returns an :class:`Outside`, and :func:`install` makes
``split_group`` return ``None`` as it does with torch's own backends.
"""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as TorchBackend

from .graphs import kept_out

_installed = False


class Outside(TorchBackend):
    """The part of a backend on a rank outside the part; nobody gets to see it."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def getBackendName(self) -> str:  # noqa: N802
        return "kolo"


def install() -> None:
    """Patches ``torch.distributed.ProcessGroup.split_group``. May be called again."""
    global _installed
    if _installed:
        return
    _installed = True
    plain = dist.ProcessGroup.split_group

    @functools.wraps(plain)
    def split_group(self, new_ranks, *arguments, **named):
        part = plain(self, new_ranks, *arguments, **named)
        return part if self.rank() in new_ranks else None

    dist.ProcessGroup.split_group = kept_out(split_group)
