"""An all-reduce by hand: partial sums go round a ring, in two alternating buffers.

    torchrun --standalone --nproc-per-node 3 ring.py

While a rank sends the data that it received in the step before, it receives into the other buffer, so no step waits for
memory.
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401


def all_reduce(send: torch.Tensor, received: torch.Tensor) -> None:
    """Puts the sum of all ranks' `send` into `received`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    buffers = [send.clone(), torch.zeros_like(send)]
    sum_ = send.clone()
    for step in range(ranks - 1):
        out, into = buffers[step % 2], buffers[(step + 1) % 2]
        sending = dist.isend(out, right)
        dist.recv(into, left)
        sum_ += into
        sending.wait()
    received[:] = sum_


dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()
x, y = torch.arange(6.0).view(2, 3) * (rank + 1), torch.zeros(2, 3)
all_reduce(x, y)
dist.all_reduce(x)
assert torch.equal(x, y)
print(f"rank {rank} of {ranks}: the same as all_reduce", flush=True)
dist.destroy_process_group()
