"""DistributedDataParallel round one linear layer, with the ranks given in code and gradients accumulated.

    python linear.py --ranks 2
"""

import argparse
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("kolo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1000, 1000), bucket_cap_mb=25)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.manual_seed(rank)
    for _ in range(3):
        # A step has two passes; the gradients of the first stay local.
        with model.no_sync():
            model(torch.randn(20, 1000)).square().mean().backward()
        model(torch.randn(20, 1000)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    weights = [torch.zeros(1000, 1000) for _ in range(ranks)]
    dist.all_gather(weights, model.module.weight.detach())
    assert all(torch.equal(one, weights[0]) for one in weights)
    print(f"rank {rank} of {ranks}: the same weights on all ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, args=(ranks, port), nprocs=ranks)
