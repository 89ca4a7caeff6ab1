"""Gather: the tensors of all ranks, on rank 0.

    mpiexec -n 4 python gather.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

everybody = [torch.zeros(2) for _ in range(ranks)] if rank == 0 else None
dist.gather(torch.full((2,), 10.0 * rank), everybody, dst=0)
if rank == 0:
    assert [x.tolist() for x in everybody] == [[10 * r] * 2 for r in range(ranks)]

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
