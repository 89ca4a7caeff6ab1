"""How long a job takes until its process group is ready: torchrun with Gloo against mpirun with Kolo, taking turns.

    python start.py [--ranks 4] [--rounds 5] [--mpirun mpirun]

Every rank imports torch (and kolo.torch), calls ``init_process_group`` and passes one barrier. Two times are taken: from the
launcher's start until the last rank has passed the barrier, and from the first line of a rank's program until that rank has
passed it, where the slowest rank counts. Medians over the rounds are printed, and how they compare with torchrun and Gloo.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

#: The program of each rank; its argument is the backend. It prints with a single write, so that ranks' lines do not mix.
RANK = """
import time; began = time.time()
import os, sys
if sys.argv[1] == "kolo":
    import kolo.torch
import torch.distributed as dist
imported = time.time()
dist.init_process_group(sys.argv[1])
dist.barrier()
ready = time.time()
os.write(1, f"ready {imported - began} {ready - began} {ready}\\n".encode())
dist.destroy_process_group()
"""


def mpirun(program: str, ranks: int) -> list[str]:
    """The command that starts the ranks, without the program that they run."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if "Open" in said else []
    return [program, *options, "-n", str(ranks)]


def measure(command: list[str], ranks: int) -> tuple[float, float, float]:
    """The slowest rank's seconds: from the launch until ready, from its first line until ready, and for the imports alone."""
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ready ")]
    if done.returncode != 0 or len(found) != ranks:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    imports, insides, ends = zip(*(map(float, words) for words in found))
    return max(ends) - began, max(insides), max(imports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mpirun", default="mpirun", help="an mpirun or mpiexec")
    asked = parser.parse_args()
    launcher = shutil.which(asked.mpirun)
    if launcher is None:
        parser.error(f"there is no {asked.mpirun} here; --mpirun names one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={asked.ranks}"]
    program = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"kolo-start-{os.getpid()}.py")
    ways = {
        "torchrun, gloo": [*torchrun, program, "gloo"],
        "torchrun, kolo": [*torchrun, program, "kolo"],
        f"{os.path.basename(launcher)}, kolo": [*mpirun(launcher, asked.ranks), sys.executable, program, "kolo"],
    }
    with open(program, "w") as file:
        file.write(RANK)
    try:
        for command in ways.values():  # Warm up: what is read from disk now is in memory later.
            measure(command, asked.ranks)
        rounds = [{name: measure(command, asked.ranks) for name, command in ways.items()} for _ in range(asked.rounds)]
    finally:
        os.unlink(program)
    medians = {name: [statistics.median(r[name][i] for r in rounds) for i in range(3)] for name in ways}
    base = medians["torchrun, gloo"]
    print(f"{asked.ranks} ranks, medians of {asked.rounds} rounds, seconds (against torchrun with Gloo)")
    print(f"{'':18}{'since the launch':>20}{'inside a rank':>20}{'its imports':>20}")
    for name, row in medians.items():
        print(f"{name:18}" + "".join(f"{value:12.2f} ({value / first:4.2f})" for value, first in zip(row, base)))


if __name__ == "__main__":
    main()
