"""Reduce: the sum of all ranks' tensors, on rank 0.

    mpiexec -n 4 python reduce.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

x = torch.full((4,), rank + 1.0)
dist.reduce(x, dst=0)
if rank == 0:
    assert x.tolist() == [ranks * (ranks + 1) / 2] * 4

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
