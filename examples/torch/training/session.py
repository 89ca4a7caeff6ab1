"""The default process group, for as long as a `with` block."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

import torch
import torch.distributed as dist

from .backends import require


@contextmanager
def joined(backend: str) -> Iterator[None]:
    """Joins under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; leaves without a fuss.

    If the block raises, the group is not left in order: the other ranks may be waiting in a call, and learn more from
    this process's end.
    """
    require(backend)
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    yield
    leave()


def leave() -> None:
    """Ends the default process group when all ranks are done with it."""
    dist.barrier()
    # Gloo's threads must end before the interpreter does, so nothing may still hold the group: DistributedDataParallel
    # and its hooks are a cycle that only the collector frees.
    gc.collect()
    dist.destroy_process_group()
