#!/usr/bin/env python3
"""All-reduce of torch tensors through Kolo and Gloo, taking turns in one run, and what the Python path adds to the Rust call.

    python all_reduce.py [--ranks 2,4,8] [--max-bytes 256M] [--rounds 5] [--transport tcp] [--device cuda] [--markdown]

Starts the ranks itself. Every point is the median over the rounds of the slowest rank's time per call. The backends
take turns within a round, so that other load on the machine affects both. Times are in microseconds. The result of each
point is checked once against the expected sum. All ranks share one GPU, where a call ends when the stream has passed it.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

#: Seconds that one backend may take for one point and round.
POINT_SECONDS = 0.25
SIZES = [8 << (2 * i) for i in range(14)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--max-bytes", default="256M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", help="KOLO_TRANSPORT of the ranks")
    parser.add_argument("--device", default="cpu", help="of the tensors: cpu or cuda")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    if "RANK" in os.environ:
        return be_rank(options)
    if options.transport:
        os.environ["KOLO_TRANSPORT"] = options.transport
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            started = []
            for rank in range(ranks):
                place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MEET": folder, "OMP_NUM_THREADS": "1"}
                started.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **place}))
            if any([process.wait() for process in started]):
                sys.exit(f"{ranks} ranks: one of them failed")


def be_rank(options) -> None:
    import torch
    import torch.distributed as dist

    import kolo.torch  # noqa: F401

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MEET']}/store", rank=rank, world_size=ranks)
    groups = {"kolo": dist.new_group(backend="kolo"), "gloo": dist.new_group(backend="gloo")}
    rows = []
    for size in [size for size in SIZES if size <= to_bytes(options.max_bytes)]:
        tensor = torch.empty(size // 4, device=options.device)
        for group in groups.values():
            tensor.fill_(rank + 1)
            dist.all_reduce(tensor, group=group)
            assert torch.all(tensor == ranks * (ranks + 1) / 2), "the sum is wrong"
        tensor.zero_()
        counts = {name: calls_for(dist, tensor, group) for name, group in groups.items()}
        times: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(options.rounds):
            for name, group in groups.items():
                times[name].append(measure(dist, tensor, group, counts[name]))
        rows.append((size, *(statistics.median(times[name]) for name in groups)))
    added = overhead(dist, groups["kolo"])
    if rank == 0:
        report(rows, ranks, added, options)
    dist.destroy_process_group()


def calls_for(dist, tensor, group) -> int:
    """How many calls fill the time of a point; the same number on all ranks."""
    once = measure(dist, tensor, group, 3)
    return max(3, min(20_000, int(POINT_SECONDS / (once * 1e-6))))


def measure(dist, tensor, group, calls: int) -> float:
    """Microseconds per call on the slowest rank."""
    import torch

    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
        if tensor.is_cuda:
            torch.cuda.current_stream().synchronize()
    took = torch.tensor([(time.perf_counter() - began) / calls * 1e6], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def overhead(dist, group) -> tuple[float, float]:
    """Microseconds of an 8-byte call through torch, and of the Rust call alone. With one rank, so that no call waits."""
    import torch

    alone = dist.new_subgroups_by_enumeration([[r] for r in range(dist.get_world_size())], backend="kolo")[0]
    tensor = torch.zeros(2)
    comm, at = alone._engine.comm, tensor.data_ptr()

    def best(call) -> float:
        def once() -> float:
            began = time.perf_counter()
            for _ in range(2000):
                call()
            return (time.perf_counter() - began) / 2000 * 1e6

        return min(once() for _ in range(5))

    through_torch = best(lambda: dist.all_reduce(tensor, group=alone))
    return through_torch, best(lambda: comm.start_and_wait((0, at, at, 2, 9, 0, 1.0, 0), 10.0))


def report(rows, ranks: int, added: tuple[float, float], options) -> None:
    transport = os.environ.get("KOLO_TRANSPORT", "auto")
    ratios = [gloo / kolo for _, kolo, gloo in rows]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\n{ranks} ranks, tensors on {options.device}, KOLO_TRANSPORT={transport}, medians of {options.rounds} rounds, us\n")
    if options.markdown:
        print("| bytes | kolo | gloo | gloo / kolo |\n| ---: | ---: | ---: | ---: |")
    else:
        print(f"{'bytes':>12} {'kolo':>12} {'gloo':>12} {'gloo/kolo':>10}")
    line = "| {:,} | {:,.1f} | {:,.1f} | {:.2f} |" if options.markdown else "{:>12,} {:>12,.1f} {:>12,.1f} {:>10.2f}"
    for (size, kolo, gloo), ratio in zip(rows, ratios):
        print(line.format(size, kolo, gloo, ratio))
    print(f"\nratio: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    print(f"8 bytes on one rank: {added[0]:.2f} us through torch, {added[1]:.2f} us for the Rust call", flush=True)


def to_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


if __name__ == "__main__":
    main()
