#!/usr/bin/env python3
"""How long a small call on a NumPy array takes through Kolo and through mpi4py, taking turns in one run.

    python small_calls.py [--ranks 1,2,4] [--rounds 5] [--mpi NAME=PYTHON=MPIRUN ...] [--kolo NAME=PYTHON ...] [--markdown]

``--mpi`` names an MPI, an interpreter that has mpi4py and NumPy, and its mpirun; ``--kolo`` names another build of Kolo and an
interpreter that has it. This script starts Kolo's ranks itself. The programs take turns: each round starts each of them once.
A run repeats each call equally often on all ranks, in batches, and times each batch. Its result is the 10th percentile of the
batches, on the rank where that is slowest: about what the call takes while nothing else uses the processors. On a machine that
others use, start this with ``chrt -f 1``. A point is the median over the rounds, in microseconds. Every call's result is checked
before the call is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

#: Calls in a batch, which is timed as a whole, and the number of batches.
CALLS = 50
BATCHES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpi", action="append", default=[], help="name=interpreter=mpirun")
    parser.add_argument("--kolo", action="append", default=[], help="name=interpreter, for another build of Kolo")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--be", choices=("kolo", "mpi"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        return be_rank(options.be)
    mpis = [entry.split("=") for entry in options.mpi]
    programs = [("kolo", "kolo", sys.executable, None)]
    programs += [(name, "kolo", python, None) for name, python in (entry.split("=") for entry in options.kolo)]
    programs += [(name, "mpi", python, mpirun) for name, python, mpirun in mpis]
    for ranks in map(int, options.ranks.split(",")):
        found: dict[str, dict[str, list[float]]] = {name: {} for name, *_ in programs}
        for _ in range(options.rounds):
            for name, kind, python, mpirun in programs:
                for call, seconds in run(kind, python, mpirun, ranks).items():
                    found[name].setdefault(call, []).append(seconds)
        table(ranks, found, options.markdown)


def run(kind: str, python: str, mpirun: str | None, ranks: int) -> dict[str, float]:
    """Runs a program once; returns its calls and the time that the slowest rank took for each."""
    command = [python, os.path.abspath(__file__), "--be", kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        environment["MEET"] = folder
        if mpirun is None:
            places = [{"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
            started = [
                subprocess.Popen(command, env={**environment, **place}, stdout=subprocess.PIPE, text=True) for place in places
            ]
        else:
            command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
            started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)]
        texts = [process.communicate(timeout=300)[0] for process in started]
        if any(process.returncode for process in started):
            sys.exit(f"{kind} with {ranks} ranks failed")
    worst: dict[str, float] = {}
    for line in "".join(texts).splitlines():
        call, _, seconds = line.rpartition(" ")
        worst[call] = max(worst.get(call, 0.0), float(seconds))
    return worst


def be_rank(kind: str) -> None:
    import numpy as np

    calls, barrier = (kolo_calls if kind == "kolo" else mpi_calls)(np)
    lines = []
    for name, call, check in calls:
        call()
        assert check is None or check(), name
        barrier()
        times = []
        for _ in range(BATCHES):
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times.append((time.perf_counter() - begin) / CALLS)
        barrier()
        lines.append(f"{name} {sorted(times)[BATCHES // 10]:.9f}\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def kolo_calls(np):
    import kolo

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    comm = kolo.init(f"file://{os.environ['MEET']}/meet", rank=rank, world_size=ranks)
    x, out, all = np.ones(1), np.empty(1), np.empty(ranks)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks

    def ping():
        if rank == 0:
            comm.send(x, 1)
            comm.recv(out, 1)
        elif rank == 1:
            comm.recv(out, 0)
            comm.send(x, 0)

    calls = [
        ("all_reduce", lambda: comm.all_reduce(x, out=out), lambda: out[0] == ranks),
        ("reduce", lambda: comm.reduce(x, out=out), None),
        ("broadcast", lambda: comm.broadcast(x), None),
        ("all_gather", lambda: comm.all_gather(x, all), lambda: all.sum() == ranks),
        ("barrier", lambda: comm.barrier(), None),
        ("start and wait", lambda: comm.all_reduce_start(x, out=out).wait(), lambda: out[0] == ranks),
        ("send_recv", lambda: comm.send_recv(x, right, out, left), lambda: out[0] == 1),
        ("ping and pong", ping, None),
    ]
    return calls if ranks > 1 else calls[:-1], comm.barrier


def mpi_calls(np):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, ranks = comm.rank, comm.size
    x, out, all = np.ones(1), np.empty(1), np.empty(ranks)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks

    def ping():
        if rank == 0:
            comm.Send(x, 1)
            comm.Recv(out, 1)
        elif rank == 1:
            comm.Recv(out, 0)
            comm.Send(x, 0)

    calls = [
        ("all_reduce", lambda: comm.Allreduce(x, out), lambda: out[0] == ranks),
        ("reduce", lambda: comm.Reduce(x, out), None),
        ("broadcast", lambda: comm.Bcast(x), None),
        ("all_gather", lambda: comm.Allgather(x, all), lambda: all.sum() == ranks),
        ("barrier", lambda: comm.Barrier(), None),
        ("start and wait", lambda: comm.Iallreduce(x, out).Wait(), lambda: out[0] == ranks),
        ("send_recv", lambda: comm.Sendrecv(x, right, recvbuf=out, source=left), lambda: out[0] == 1),
        ("ping and pong", ping, None),
    ]
    return calls if ranks > 1 else calls[:-1], comm.Barrier


def table(ranks: int, found: dict[str, dict[str, list[float]]], markdown: bool) -> None:
    names = list(found)
    median = {name: {call: statistics.median(times) for call, times in calls.items()} for name, calls in found.items()}
    head = [f"{ranks} rank{'s' if ranks > 1 else ''}, us", *names, *(f"{name} / kolo" for name in names[1:])]
    rows = [head]
    for call in median["kolo"]:
        own = median["kolo"][call]
        others = [median[name][call] for name in names[1:]]
        rows.append([call, f"{own * 1e6:.2f}", *(f"{t * 1e6:.2f}" for t in others), *(f"{t / own:.2f}" for t in others)])
    if markdown:
        rows.insert(1, ["---", *["---:"] * (len(head) - 1)])
        print("\n".join("| " + " | ".join(row) + " |" for row in rows), end="\n\n", flush=True)
        return
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    print("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
