"""Barrier: no rank goes on until all ranks have arrived.

    mpiexec -n 4 python barrier.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

import time

time.sleep(0.05 * rank)
came = torch.tensor([time.time()], dtype=torch.float64)
dist.barrier()
went = time.time()
dist.all_reduce(came, op=dist.ReduceOp.MAX)
assert dist.get_world_size() == ranks and went >= came.item() - 0.001

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
