"""Starts the processes of a run: a single one for sequential runs, torchrun or mpirun for the others.

No port is fixed: torchrun is started stand-alone and takes a free one, mpirun needs none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .job import Job, Result, load_result, save

HERE = Path(__file__).resolve().parent.parent
LAUNCHER_EXIT_SECONDS = 40  # torchrun gives its ranks 30 s


class RunFailed(Exception):
    """A run ended with an error; its own output says more."""


@dataclass(frozen=True)
class Weights:
    """All weights of a model, after a few steps (loop.EARLY_STEPS) and at the end."""

    early: np.ndarray
    final: np.ndarray


def launch(job: Job, timeout_seconds: float) -> tuple[Result, Weights]:
    """Runs `job` to its end and returns its result."""
    with tempfile.TemporaryDirectory(prefix="kolo-study-") as folder:
        job_path, result_path = Path(folder, "job.json"), Path(folder, "result.json")
        save(job, job_path)
        command = [*_launcher(job), "-m", "training.worker", str(job_path), str(result_path)]
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"OMP_NUM_THREADS": str(job.threads), "PYTHONPATH": os.pathsep.join(paths)}
        status = run_for(command, timeout_seconds, cwd=HERE, env=environment)
        if status is None:
            raise RunFailed(f"{job.model}, {job.label}: not finished after {timeout_seconds:.0f} s")
        if status != 0:
            raise RunFailed(f"{job.model}, {job.label}: exit status {status}")
        with np.load(result_path.with_suffix(".npz")) as saved:
            return load_result(result_path), Weights(saved["early"], saved["final"])


def run_for(command: list[str], timeout_seconds: float, cwd: Path, env: dict[str, str]) -> int | None:
    """Returns the exit status of `command`; None if it took too long and was ended."""
    process = subprocess.Popen(command, cwd=cwd, env=env)
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.terminate()  # launchers take their ranks with them
            try:
                process.wait(LAUNCHER_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _launcher(job: Job) -> list[str]:
    """Returns the command up to and including the Python interpreter and its options."""
    if job.backend == "none":
        return [sys.executable]
    if job.backend == "mpi":
        return [*mpirun(job.ranks), sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}"]


def mpirun(ranks: int) -> list[str]:
    """Returns an mpirun command with the options that each implementation needs for `ranks` ranks on one host."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    command = ["mpirun"]
    if "Open MPI" in version or "OpenRTE" in version:
        # Ranks are not bound, like those of the other backends; waiting ranks yield if there are more of them than
        # processors.
        command += ["--oversubscribe", "--bind-to", "none"]
        if ranks > (os.cpu_count() or 1):
            command += ["--mca", "mpi_yield_when_idle", "1"]
        if os.geteuid() == 0:
            command += ["--allow-run-as-root"]
    return [*command, "-n", str(ranks)]
