"""Runs every program of this folder as its first lines say: `python -m pytest examples/tutorials`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
kolo = pytest.importorskip("kolo", reason="Kolo's Python package is not installed")

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "data"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parents[1] / "target"))
LIMIT_SECONDS = 120


def finish(processes: list[subprocess.Popen]) -> str:
    """Returns the output of all processes, which must succeed within the limit."""
    until = time.monotonic() + LIMIT_SECONDS
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=max(until - time.monotonic(), 0))[0])
    except subprocess.TimeoutExpired:
        pytest.fail(f"not finished after {LIMIT_SECONDS} s")
    finally:
        for process in processes:
            process.kill()
    text = "".join(outputs)
    assert all(process.returncode == 0 for process in processes), text
    return text


def start(*command: str, python: str = sys.executable, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    whole = [python, *command]
    return subprocess.Popen(whole, cwd=HERE, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(*command: str) -> str:
    """Runs a program that starts its ranks itself."""
    return finish([start(*command)])


def ranks(count: int, folder: Path, *command: str, **options: str) -> str:
    """Runs ranks as `kolo run` starts them: they meet through a file."""
    told = {"KOLO_RENDEZVOUS": f"file://{folder}/meet", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return finish([start(*command, **told, RANK=str(r), LOCAL_RANK=str(r), **options) for r in range(count)])


def test_train(tmp_path: Path) -> None:
    import torch

    checkpoint = tmp_path / "model.pt"
    text = ranks(2, tmp_path, "train.py", "--data", str(IMAGES), "--epochs", "2", "--checkpoint", str(checkpoint))
    found = [float(percent) for percent in re.findall(r"accuracy ([\d.]+) %", text)]
    assert len(found) == 2 and found[-1] > 50, text
    assert torch.load(checkpoint)["epochs"] == 2


@pytest.mark.parametrize("program", sorted(path.name for path in (HERE / "primitives").glob("*.py")))
def test_primitives(program: str, tmp_path: Path) -> None:
    text = ranks(3, tmp_path, f"primitives/{program}")
    assert all(f"rank {rank} of 3: ok" in text for rank in range(3)), text


def test_even_numbers_of_ranks_send_in_turns(tmp_path: Path) -> None:
    assert "rank 1 of 2: ok" in ranks(2, tmp_path, "primitives/send_recv.py")


@pytest.mark.parametrize(
    ("program", "count", "words"),
    [
        ("ring.py", 3, "the same as all_reduce"),
        ("partition.py", 2, "the same weights on all ranks"),
        ("operators.py", 4, "ok"),
        ("tensor_parallel.py", 2, "same results"),
        ("pipeline_parallel.py", 3, "same gradients"),
        ("sharded.py", 2, "same as in one piece"),
    ],
)
def test_programs(program: str, count: int, words: str, tmp_path: Path) -> None:
    text = ranks(count, tmp_path, program)
    assert text.count(words) == count, text


def test_processes() -> None:
    text = run("processes.py", "--ranks", "3")
    assert text.count("of 3: 3") == 6 and "spawned" in text and "plain" in text, text


def test_linear() -> None:
    assert run("linear.py").count("the same weights on all ranks") == 2


def test_init_methods() -> None:
    assert run("init_methods.py", "--ranks", "3").count(": 3 ranks") == 7


def test_bucket_size(tmp_path: Path) -> None:
    text = ranks(2, tmp_path, "bucket_size.py", "--steps", "3")
    assert re.search(r"recommended: bucket_cap_mb=[\d.]+\n", text) and text.count(" ms") == 10, text


def test_mpi4py_flow(tmp_path: Path) -> None:
    library = TARGET / "debug" / "libmpi.so"
    if not library.exists():
        pytest.skip("the MPI library is not built: cargo build -p kolo-mpi")
    venv = TARGET / "mpi4py" / "venv" / "bin" / "python"
    python = sys.executable if importlib.util.find_spec("mpi4py") else str(venv)
    if not Path(python).exists():
        pytest.skip("there is no mpi4py: pip install mpi4py, or bindings/mpi/suite.sh")
    os.symlink(library, tmp_path / "libmpi.so.12")
    text = ranks(3, tmp_path, "mpi4py_flow.py", python=python, MPI4PY_LIBMPI=f"{tmp_path}/libmpi.so.12")
    assert re.search(r"Kolo.*losses of 3 ranks", text), text


def test_every_program_is_in_the_index() -> None:
    index = (HERE / "README.md").read_text()
    programs = [path.relative_to(HERE).as_posix() for path in HERE.rglob("*.py") if not path.name.startswith("test_")]
    missing = [program for program in programs if f"({program})" not in index]
    assert len(programs) > 20 and not missing, missing
