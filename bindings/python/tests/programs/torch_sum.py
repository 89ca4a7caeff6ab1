"""What a user's program looks like: no import of Kolo, one changed word. Prints who it was and what came out."""

import os

import torch
import torch.distributed as dist

#: Of launchers that do not set what torch reads.
LAUNCHERS = [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")]

for rank, size in LAUNCHERS:
    if "RANK" not in os.environ and rank in os.environ:
        os.environ.update(RANK=os.environ[rank], WORLD_SIZE=os.environ[size])

dist.init_process_group(
    backend="kolo",
    init_method=os.environ.get("MEET", "env://"),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
rank, ranks = dist.get_rank(), dist.get_world_size()
x = torch.full((100_000,), rank + 1.0)
dist.all_reduce(x)
assert torch.all(x == ranks * (ranks + 1) / 2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 200))
for _ in range(3):
    net(torch.ones(4, 200)).sum().backward()
half = dist.new_group(list(range((ranks + 1) // 2)))
if rank < (ranks + 1) // 2:
    dist.barrier(half)
print(f"rank {rank} of {ranks}: {x[0]:g}; {dist.group.WORLD.kolo_summary()}", flush=True)
dist.destroy_process_group()
