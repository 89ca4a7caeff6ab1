"""Parts of groups that have other backends beside Kolo.

Torch's C++ splits every backend of such a group on every rank. On a rank outside the part, torch's own backends return no part, but
one that is written in Python has to return an object. So Kolo's returns an :class:`Outside`, and ``split_group`` is replaced by one
that returns ``None`` on such a rank, as with torch's own backends.
"""

from __future__ import annotations

from torch._C._distributed_c10d import Backend as TorchBackend


class Outside(TorchBackend):
    """The part of a backend on a rank outside the part; nobody gets to see it."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def getBackendName(self) -> str:  # noqa: N802
        return "kolo"


def hiding_outside(plain):
    """Makes ``split_group`` return ``None`` on a rank outside the part."""

    def split_group(self, new_ranks, *arguments, **named):
        part = plain(self, new_ranks, *arguments, **named)
        return part if self.rank() in new_ranks else None

    return split_group
