"""Scatter: each rank gets one tensor of rank 0's list.

    mpiexec -n 4 python scatter.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

mine = torch.zeros(2)
dist.scatter(mine, [torch.full((2,), 10.0 * r) for r in range(ranks)] if rank == 0 else None, src=0)
assert mine.tolist() == [10 * rank] * 2

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
