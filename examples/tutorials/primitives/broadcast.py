"""Broadcast: rank 0's tensor, on every rank.

    mpiexec -n 4 python broadcast.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

x = torch.arange(4.0) if rank == 0 else torch.zeros(4)
dist.broadcast(x, src=0)
assert x.tolist() == [0, 1, 2, 3]

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
