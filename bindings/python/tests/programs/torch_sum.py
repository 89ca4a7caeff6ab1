"""Like a user's program: it does not import Kolo, only the backend's name is changed. Prints its rank and the result."""

import torch
import torch.distributed as dist

dist.init_process_group("kolo")
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
