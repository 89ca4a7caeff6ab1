"""Every method of torch's classes that Kolo replaces, and when.

Each row has a class, the name of a method, and a function that makes the new method out of the old one; its module has the reason.
The new methods do as before for groups that have nothing to do with Kolo. Beside these, :mod:`.rendezvous` adds to torch's
rendezvous handlers and extends some, all in its ``install``.
"""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import holders, reducer, splitting
from .graphs import kept_out

#: Replaced when Kolo is registered.
_FOR_ALL = (
    (dist.Reducer, "_set_forward_pass_work_handle", reducer.keeping_works),
    (DistributedDataParallel, "_register_builtin_comm_hook", reducer.compressing_in_python),
)

#: Replaced when a group of torch's own class gets a backend of Kolo's.
_FOR_GROUPS_OF_TORCH = (
    (dist.ProcessGroup, "split_group", splitting.hiding_outside),
    (dist.Work, "is_completed", holders.completed_if_ours_is),
    *((dist.Work, name, holders.forwarded) for name in holders.FORWARDED),
)

_done: set[tuple] = set()


def for_all() -> None:
    """Replaces what every program needs. May be called again."""
    _replace(_FOR_ALL)


def for_groups_of_torch() -> None:
    """Replaces what programs with groups of torch's own class need. May be called again."""
    if _FOR_GROUPS_OF_TORCH not in _done:
        holders.reveal_works()
    _replace(_FOR_GROUPS_OF_TORCH)


def _replace(rows: tuple) -> None:
    if rows in _done:
        return
    _done.add(rows)
    for owner, name, made_from in rows:
        plain = getattr(owner, name)
        setattr(owner, name, kept_out(functools.wraps(plain)(made_from(plain))))
