"""DDP under ``Join``: the reducer keeps a work of each forward pass, and waits for it in the backward pass.

The reducer keeps only the C++ object of the work. If Python's object goes meanwhile, as it does when the forward pass returns, the
wait does not reach the method in Python, and never ends.
"""

from __future__ import annotations

import functools
import weakref

import torch.distributed as dist

from .graphs import kept_out

#: The work of the last forward pass of each reducer.
_works: weakref.WeakKeyDictionary[dist.Reducer, dist.Work] = weakref.WeakKeyDictionary()


def install() -> None:
    """Patches ``torch.distributed.Reducer``, so that works live as long as it may wait for them. To be called once."""
    plain = dist.Reducer._set_forward_pass_work_handle

    @functools.wraps(plain)
    def keeping(self, work, *arguments):
        _works[self] = work
        plain(self, work, *arguments)

    dist.Reducer._set_forward_pass_work_handle = kept_out(keeping)
