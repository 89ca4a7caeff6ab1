"""Every way to make a process group, one after another, in ranks that this program starts itself.

    python init_methods.py --ranks 3
"""

import argparse
import os
import socket
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import kolo.torch  # noqa: F401

MINUTE = timedelta(minutes=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ways(folder: str) -> list[tuple[str, bool]]:
    """Returns URLs, and for each whether ranks are numbered by hand; otherwise the processes draw their ranks."""
    ports = [free_port() for _ in range(4)]
    group = f"multicast://239.255.70.{ports[0] % 250 + 1}:{ports[0]}"
    return [
        ("env://", True),
        (f"file://{folder}/numbered", True),
        (f"file://{folder}/drawn", False),
        (f"tcp://127.0.0.1:{ports[1]}", True),
        (f"tcp://127.0.0.1:{ports[2]}", False),
        (f"{group}/numbered?interface=127.0.0.1", True),
        (f"{group}/drawn?interface=127.0.0.1", False),
    ]


def begin(rank: int, ranks: int, methods: list[tuple[str, bool]], port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for method, numbered in methods:
        who = {"rank": rank} if numbered else {}
        dist.init_process_group("kolo", init_method=method, world_size=ranks, timeout=MINUTE, **who)
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == ranks and (not numbered or dist.get_rank() == rank)
        if dist.get_rank() == 0:
            print(f"{method.split('?')[0]}{'' if numbered else ', ranks drawn'}: {ranks} ranks", flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(begin, args=(ranks, ways(folder), free_port()), nprocs=ranks, start_method="fork")
