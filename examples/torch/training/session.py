"""The default process group, for the duration of a `with` block."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

import torch
import torch.distributed as dist

from .backends import require


@contextmanager
def joined(backend: str) -> Iterator[None]:
    """Joins under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; leaves in good order.

    If the block raises, the group is not left in good order: the other ranks may be waiting in a call, and learn more
    from the end of this process.
    """
    require(backend)
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    yield
    leave()


def leave() -> None:
    """Ends the default process group when all ranks are done with it."""
    dist.barrier()
    # Gloo's threads must end before the interpreter does, so no object may still refer to the group:
    # DistributedDataParallel and its hooks are a cycle that only the garbage collector frees.
    gc.collect()
    dist.destroy_process_group()
