"""Choosing `bucket_cap_mb` for a model: the value that a cost model of this machine recommends, and measured step
times.

    torchrun --standalone --nproc-per-node 2 bucket_size.py

Small buckets are sent early and hide behind the backward pass, but each costs a call. The cost model has two constants,
latency and time per byte, fitted to two measured all-reduces. It recommends the smallest bucket whose latency is at
most a tenth of its time.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kolo.torch  # noqa: F401

SIZES_MB = [0.05, 0.25, 1, 4, 25]


def all_reduce_us(elements: int, calls: int = 50) -> float:
    """Returns the time of an all-reduce on the slowest rank."""
    x, times = torch.zeros(elements), []
    for _ in range(calls):
        begin = time.perf_counter()
        dist.all_reduce(x)
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item() * 1e6


def recommended_mb(latency_us: float, us_per_mb: float) -> float:
    fits = [mb for mb in SIZES_MB if latency_us <= 0.1 * (latency_us + us_per_mb * mb)]
    return fits[0] if fits else SIZES_MB[-1]


def step_ms(bucket_mb: float, steps: int) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(400, 400), nn.ReLU()) for _ in range(8)])
    model = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    x, times = torch.randn(16, 400), []
    for _ in range(steps + 2):
        model.zero_grad()
        loss = model(x).sum()
        dist.barrier()
        begin = time.perf_counter()
        loss.backward()
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times[2:])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item() * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("kolo")
    latency_us, long_us = all_reduce_us(2), all_reduce_us(2**20)
    us_per_mb = (long_us - latency_us) / 4
    rows = [(mb, latency_us + us_per_mb * mb, step_ms(mb, steps)) for mb in SIZES_MB]
    if dist.get_rank() == 0:
        print(dist.group.WORLD.kolo_explain("all_reduce", 2**18).splitlines()[0])
        print("bucket_cap_mb  all_reduce, predicted  backward, measured")
        for mb, us, ms in rows:
            print(f"{mb:13g} {us / 1e3:18.3f} ms {ms:16.2f} ms")
        print(f"recommended: bucket_cap_mb={recommended_mb(latency_us, us_per_mb):g}", flush=True)
    dist.destroy_process_group()
