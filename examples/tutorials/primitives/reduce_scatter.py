"""Reduce-scatter: the sum of all ranks' tensors, of which each rank gets one part.

    mpiexec -n 4 python reduce_scatter.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

part = torch.zeros(2)
dist.reduce_scatter_tensor(part, torch.arange(2.0 * ranks))
assert part.tolist() == [ranks * 2 * rank, ranks * (2 * rank + 1)]

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
