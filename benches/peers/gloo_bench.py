#!/usr/bin/env python3
"""Gloo's side of the comparison: the loop of benches/src/bin/kolo_bench.rs, over torch.distributed.

    gloo_bench.py --ranks 4 --collectives all_reduce --sizes 8,1048576

Starts its own ranks on the loopback interface. Rank 0 prints one JSON object for each point. README.md describes the
method.
"""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time

SAMPLE_SECONDS = 300e-6  # a sample lasts at least this
LEAST_BATCH, SINGLE_SECONDS = 4, 150e-3  # and has this many operations, if they are shorter than this
SLOW_SECONDS = 50e-3  # a sample this long needs no further samples, and no second attempt
ESTIMATE_SECONDS, ESTIMATES = 0.25, 5  # limits on the time and the number of estimates
LASTING_PARTS = 8  # a batch of a long sample takes this part (1/8) of the time left
DISTURBED = 0.10  # share of the machine used by other processes
CHECKED_BYTES = 2 << 20
MIN_SLOW_SAMPLES, MIN_SAMPLES, MAX_SAMPLES = 2, 5, 200
NAMES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"]


def machine_seconds():
    """Returns the processor time of all processes so far, including time stolen by the host."""
    with open("/proc/stat") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Bench:
    """One rank."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.options = torch, dist, options
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        elements = max(max(options.sizes) // 4, self.ranks)
        self.send, self.receive = torch.empty(elements), torch.empty(elements)
        self.turn = 0

    def operation(self, name, size):
        """Returns the operation as a function without arguments, on views made once."""
        dist = self.dist
        whole, part = max(size // 4, 1), max(size // 4 // self.ranks, 1)
        parts = part * self.ranks
        send, receive = self.send, self.receive

        def broadcast():
            self.turn += 1
            dist.broadcast(receive[:whole], (self.turn - 1) % self.ranks)

        whole_receive, part_receive, parts_receive = receive[:whole], receive[:part], receive[:parts]
        part_send, parts_send = send[:part], send[:parts]
        return {
            "all_reduce": lambda: dist.all_reduce(whole_receive),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part_receive, parts_send),
            "all_gather": lambda: dist.all_gather_into_tensor(parts_receive, part_send),
            "broadcast": broadcast,
            "all_to_all": lambda: dist.all_to_all_single(parts_receive, parts_send),
            "barrier": dist.barrier,
        }[name]

    def fill(self, size, value):
        """Sets the memory that an operation of this size touches."""
        count = max(size // 4, max(size // 4 // self.ranks, 1) * self.ranks)
        self.send[:count] = value
        self.receive[:count] = value

    def check(self, name, size, once):
        """Runs the operation once on data whose result is known."""
        whole, part = max(size // 4, 1), max(size // 4 // self.ranks, 1)
        self.fill(size, self.rank + 1)
        self.turn = 0
        once()
        total = self.ranks * (self.ranks + 1) / 2
        by_rank = self.torch.arange(1, self.ranks + 1, dtype=self.torch.float32).repeat_interleave(part)
        found, expected = {
            "all_reduce": (self.receive[:whole], total),
            "reduce_scatter": (self.receive[:part], total),
            "broadcast": (self.receive[:whole], 1.0),
            "all_gather": (self.receive[: part * self.ranks], by_rank),
            "all_to_all": (self.receive[: part * self.ranks], by_rank),
        }.get(name, (self.torch.zeros(1), 0.0))
        if not bool((found == expected).all()):
            sys.exit(f"wrong result: {name}, {size} bytes, rank {self.rank}")

    def timed(self, once, batch):
        start = time.perf_counter()
        for _ in range(batch):
            once()
        return (time.perf_counter() - start) / batch

    def sample(self, once, batch):
        if once.__name__ == "broadcast" and batch < self.ranks:
            # A root leaves its broadcast early, and would count the rest of it as time of the next one.
            self.dist.barrier()
        return self.timed(once, batch)

    def lasting(self, once, limit):
        """Runs operations for at least `limit`; returns their number and the seconds of each. Rank 0 decides when to
        stop."""
        start = time.perf_counter()
        count, batch = 0, 1
        while batch:
            self.timed(once, batch)
            count += batch
            elapsed = time.perf_counter() - start
            wanted = int((limit - elapsed) * count / elapsed / LASTING_PARTS) + 1
            batch = self.torch.tensor([min(wanted, 2 * batch) if elapsed < limit else 0])
            self.dist.broadcast(batch, 0)
            batch = int(batch[0])
        return (time.perf_counter() - start) / count, count

    def over_ranks(self, values, op):
        tensor = self.torch.tensor(values, dtype=self.torch.float64)
        self.dist.all_reduce(tensor, op)
        return tensor.tolist()

    def agreed(self, once, batch):
        return self.over_ranks([self.timed(once, batch)], self.dist.ReduceOp.MAX)[0]

    def estimate(self, once):
        """Returns the time of one operation: the least of some tries, since an interrupted one would cost the point its
        samples."""
        seconds = spent = self.agreed(once, 1)
        for _ in range(1, ESTIMATES):
            if spent >= ESTIMATE_SECONDS:
                break
            batch = int(1e-3 / seconds) + 1
            again = self.agreed(once, batch)
            spent += again * batch
            seconds = min(seconds, again)
        return seconds

    def warm_up(self, once):
        if self.options.mean_ms:
            return self.lasting(once, self.options.mean_ms * 1e-3 / LASTING_PARTS)[0]
        return self.estimate(once)

    def attempt(self, once, batch, samples):
        """Returns sorted samples, and the fields of the point's record: the operations of a sample, the share of the
        machine that other processes used meanwhile, the processor time per operation of all ranks together, and the
        time of the attempt by the monotonic clock."""
        machine, process, start = machine_seconds(), time.process_time(), time.monotonic()
        self.dist.barrier()
        if self.options.mean_ms:
            mean, batch = self.lasting(once, self.options.mean_ms * 1e-3)
            times = [mean]
        else:
            times = [self.sample(once, batch) for _ in range(samples)]
        self.dist.barrier()
        own = time.process_time() - process
        busy, end = machine_seconds() - machine, time.monotonic()
        ours = self.over_ranks([own], self.dist.ReduceOp.SUM)[0]
        times = sorted(self.over_ranks(times, self.dist.ReduceOp.MAX))
        foreign = self.torch.tensor([max(0.0, (busy - ours) / (end - start) / os.cpu_count())])
        self.dist.broadcast(foreign, 0)  # all ranks must agree on whether to try again
        return times, {"batch": batch, "foreign": round(float(foreign[0]), 3), "cpu_us": round(ours / (samples * batch) * 1e6, 3),
                       "from_s": round(start, 4), "to_s": round(end, 4)}

    def point(self, name, size):
        once = self.operation(name, size)
        if size <= CHECKED_BYTES:
            self.check(name, size, once)
        self.fill(size, 0)
        seconds = self.warm_up(once)
        batch = int(SAMPLE_SECONDS / seconds) + 1
        if name == "broadcast":
            if seconds < SLOW_SECONDS:
                batch = -(-batch // self.ranks) * self.ranks
        elif seconds < SINGLE_SECONDS:
            batch = max(batch, LEAST_BATCH)
        wanted = int(self.options.budget_ms * 1e-3 / (batch * seconds))
        samples = min(MAX_SAMPLES, max(MIN_SAMPLES if seconds < SLOW_SECONDS else MIN_SLOW_SAMPLES, wanted))
        samples = 1 if self.options.mean_ms else samples
        best, told = self.attempt(once, batch, samples)
        attempts = 1
        while told["foreign"] > DISTURBED and attempts <= self.options.retries and seconds < SLOW_SECONDS:
            times, again = self.attempt(once, batch, samples)
            attempts += 1
            if again["foreign"] < told["foreign"]:
                best, told = times, again
        if self.rank == 0:
            median = (best[(samples - 1) // 2] + best[samples // 2]) / 2
            print(json.dumps({
                "collective": name, "ranks": self.ranks, "bytes": size, "samples": samples,
                "median_us": round(median * 1e6, 3), "min_us": round(best[0] * 1e6, 3),
                "p95_us": round(best[min(samples - 1, samples * 95 // 100)] * 1e6, 3), "attempts": attempts, **told,
            }), flush=True)

    def run(self):
        for name in self.options.collectives:
            for size in [0] if name == "barrier" else self.options.sizes:
                self.point(name, size)
        self.dist.destroy_process_group()


def launch(options):
    """Starts this program once for each rank. Ends all ranks when one fails or when it is ended itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(options.ranks),
               GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=dict(env, RANK=str(rank)))
             for rank in range(options.ranks)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                return 1
            time.sleep(0.05)
        return max(rank.returncode for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=NAMES)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")],
                        default=[8, 1024, 1 << 20])
    parser.add_argument("--budget-ms", type=float, default=60)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--mean-ms", type=float, help="a point is one sample that lasts at least so long")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        return launch(options)
    Bench(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
