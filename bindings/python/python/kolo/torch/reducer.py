"""DDP's reducer in C++, which knows works and futures that were made in C++ only."""

from __future__ import annotations

import weakref

import torch.distributed as dist

#: The work of the last forward pass of each reducer.
_works: weakref.WeakKeyDictionary[dist.Reducer, dist.Work] = weakref.WeakKeyDictionary()


def keeping_works(plain):
    """Makes works live as long as the reducer may wait for them, as it does under ``Join``.

    The reducer keeps only the C++ object of the work of each forward pass. If Python's object goes meanwhile, as it does when the
    forward pass returns, the wait does not reach the method in Python, and never ends.
    """

    def keeping(self, work, *arguments):
        _works[self] = work
        plain(self, work, *arguments)

    return keeping


def compressing_in_python(plain):
    """Replaces the built-in hook for compression by the equal one in Python.

    The built-in hook takes no list of tensors from a future that was made in Python.
    """

    def register(self, comm_hook_type):
        # Imported here, since few programs need the hook, and since a group imports this module.
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        from .group import backend_of

        compresses = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS
        if not compresses or backend_of(self.process_group, self.device) is None:
            return plain(self, comm_hook_type)
        return self.register_comm_hook(self.process_group, fp16_compress_hook)

    return register
