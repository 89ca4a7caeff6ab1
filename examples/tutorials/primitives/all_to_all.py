"""All-to-all: every rank sends a part to every rank, so that rows become columns.

    mpiexec -n 4 python all_to_all.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

columns = torch.zeros(ranks)
dist.all_to_all_single(columns, torch.tensor([10.0 * rank + column for column in range(ranks)]))
assert columns.tolist() == [10 * row + rank for row in range(ranks)]

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
