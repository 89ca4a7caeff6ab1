"""Send and receive: blocking, started, with tags, and from the rank that sends first.

    mpiexec -n 4 python send_recv.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

right, left = (rank + 1) % ranks, (rank - 1) % ranks
x = torch.zeros(1)
# Even ranks send first and odd ones receive, so that no rank waits forever.
if ranks % 2 == 0:
    for sends in (rank % 2 == 0, rank % 2 == 1):
        if sends:
            dist.send(torch.tensor([float(rank)]), right)
        else:
            dist.recv(x, left)
    assert x.item() == left

# Started calls need no such order.
works = [dist.isend(torch.tensor([float(rank)]), right, tag=1), dist.irecv(x, left, tag=1)]
for work in works:
    work.wait()
assert x.item() == left

if rank == 0:
    senders = {dist.recv(x) for _ in range(ranks - 1)}
    assert senders == set(range(1, ranks))
else:
    dist.send(torch.tensor([1.0]), 0)

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
