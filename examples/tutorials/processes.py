"""A program that starts its own ranks: with `torch.multiprocessing.spawn`, and with plain processes.

    python processes.py --ranks 4
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, ranks: int) -> None:
    """Does the work of one rank."""
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == ranks
    print(f"rank {rank} of {ranks}: {x.item():g}", flush=True)


def begin(rank: int, ranks: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("kolo", rank=rank, world_size=ranks)
    work(rank, ranks)
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks

    mp.spawn(begin, args=(ranks, free_port()), nprocs=ranks)
    print("spawned ranks have ended", flush=True)

    port = free_port()
    processes = [mp.get_context("fork").Process(target=begin, args=(rank, ranks, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    print("plain processes have ended", flush=True)
