"""Hooks of a group, which torch's C++ calls before and after each operation; ``TORCH_DIST_NAN_CHECK=1`` is one of them.

The methods of a :class:`KoloGroup` run without torch's C++. Once a group has hooks, its operations go through torch's C++, as those
of a group with other backends do.
"""

from __future__ import annotations

import functools
import os

import torch.distributed as dist

from . import patches
from .coalesced import Coalesced
from .messages import Messages
from .operations import Collectives

#: The older names that torch calls too.
_OLDER = ("_allgather_base", "_reduce_scatter_base", "alltoall_base")
_OLDER += ("allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")


class Hooked:
    """The methods of a group that is to call hooks."""

    def register_pre_hook(self, hook_id: int, hook) -> None:
        """Calls ``hook`` before each operation, with torch's ``PreHookArgs``."""
        dispatch(self)
        super().register_pre_hook(hook_id, hook)

    def register_post_hook(self, hook_id: int, hook) -> None:
        """Calls ``hook`` after each operation has been called, with torch's ``PostHookArgs``."""
        dispatch(self)
        super().register_post_hook(hook_id, hook)


def checks_for_nan() -> bool:
    """Returns whether torch will add a hook to the next group by itself; it does not tell the group."""
    return os.environ.get("TORCH_DIST_NAN_CHECK") == "1"


def dispatch(group) -> None:
    """Makes the operations of a group go through torch's C++ from now on."""
    patches.for_groups_of_torch()
    if not issubclass(type(group), _Dispatched):
        group.__class__ = _dispatched(type(group))


class _Dispatched:
    """The operations of torch's own groups."""


def _operations():
    for part in (Collectives, Coalesced, Messages):
        yield from (name for name in vars(part) if not name.startswith("_"))
    yield from _OLDER


for _name in _operations():
    # Torch's own groups have no methods of these names for coalescing regions. Kolo's collect its works, whoever calls the backend.
    # Torch's C++ cannot call gather_single of a backend in Python, so a group keeps its own, without hooks.
    if _name in vars(dist.ProcessGroup) and _name != "gather_single":
        setattr(_Dispatched, _name, vars(dist.ProcessGroup)[_name])


@functools.cache
def _dispatched(kind: type) -> type:
    return type(kind.__name__, (_Dispatched, kind), {"__module__": kind.__module__})
