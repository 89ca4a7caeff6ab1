"""Our own ring all-reduce from isend and irecv, as tutorials teach it, beside the library's.

The vector is cut into as many blocks as there are ranks. In the first half every rank passes a block on and adds the
one that arrives, so that after size-1 steps each block is complete on one rank. In the second half they go round.

    torchrun --standalone --nproc-per-node 4 ring_all_reduce.py --backend kolo
"""

from __future__ import annotations

import statistics
import time
from typing import Callable

import torch
import torch.distributed as dist

from training.options import parse
from training.session import joined

LENGTHS = (1, 1000, 1 << 20)
REPEATS = 5


def ring_all_reduce(vector: torch.Tensor) -> None:
    """Sums `vector` over all ranks, in place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = list(vector.tensor_split(size))
    for step in range(size - 1):
        arrived = torch.empty_like(blocks[(rank - step - 1) % size])
        pass_on(blocks[(rank - step) % size], arrived)
        blocks[(rank - step - 1) % size].add_(arrived)
    for step in range(size - 1):
        pass_on(blocks[(rank + 1 - step) % size], blocks[(rank - step) % size])


def pass_on(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """Sends to the right neighbour while receiving from the left one. Empty blocks are not sent."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works = []
    if outgoing.numel():
        works.append(dist.isend(outgoing, (rank + 1) % size))
    if incoming.numel():
        works.append(dist.irecv(incoming, (rank - 1) % size))
    for work in works:
        work.wait()


def seconds(all_reduce: Callable[[torch.Tensor], object], vector: torch.Tensor) -> float:
    """Returns the median time of a call."""
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        all_reduce(vector.clone())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in LENGTHS:
        # The values are small whole numbers, so sums are exact in any order.
        vector = torch.arange(length, dtype=torch.float32) % 100 + rank
        ours, theirs = vector.clone(), vector.clone()
        ring_all_reduce(ours)
        dist.all_reduce(theirs)
        assert torch.equal(ours, theirs), f"rank {rank}: {length} numbers: the ring's sum is wrong"
        ring, library = seconds(ring_all_reduce, vector), seconds(dist.all_reduce, vector)
        if rank == 0:
            times = f"ring {ring * 1e6:.0f} us, all_reduce {library * 1e6:.0f} us"
            print(f"{length:>8} numbers, {size} ranks: equal; {times}", flush=True)


if __name__ == "__main__":
    options = parse(__doc__)
    with joined(options.backend):
        main()
