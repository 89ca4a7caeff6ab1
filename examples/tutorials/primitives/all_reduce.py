"""All-reduce: the sum of all ranks' tensors, on every rank; and the maximum.

    mpiexec -n 4 python all_reduce.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

x = torch.full((4,), rank + 1.0)
dist.all_reduce(x)
assert x.tolist() == [ranks * (ranks + 1) / 2] * 4

x = torch.tensor([float(rank), -float(rank)])
dist.all_reduce(x, op=dist.ReduceOp.MAX)
assert x.tolist() == [ranks - 1, 0]

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
