"""Runs every program of this folder once, with two ranks and few images: `python -m pytest examples/torch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from training.backends import BACKENDS, why_not  # noqa: E402
from training.data import DEBIAN_PACKAGE  # noqa: E402
from training.idx import read_idx  # noqa: E402

IMAGES = HERE.parent / "data"  # 2,000 of them, part of the repository
LIMIT_SECONDS = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ROUNDING = 1e-6  # of weights below 1, after ten steps

backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=pytest.mark.skipif(why_not(name) is not None, reason=str(why_not(name))))
        for name in BACKENDS
        if name != "mpi"
    ],
)


def run(*command: str) -> str:
    """Returns the output of `command`, which must succeed within the limit."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=HERE, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # launchers take their ranks with them
            output, _ = process.communicate()
            pytest.fail(f"not finished after {LIMIT_SECONDS} s:\n{output}")
    assert process.returncode == 0, output
    return output


@backends
def test_mpi_flow(backend: str) -> None:
    output = run(*TORCHRUN, "mpi_flow.py", "--backend", backend, "--data", str(IMAGES), "--epochs", "1")
    assert "epoch 1, rank 0: loss" in output and "epoch 1, rank 1: loss" in output


@pytest.mark.skipif(DEBIAN_PACKAGE.is_dir(), reason="Debian's package has images")
def test_images_come_with_the_programs(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('hidden')\n")
    program = "from training.data import load; print(load(None).source, len(load(None).train))"
    output = run("env", f"PYTHONPATH={tmp_path}", sys.executable, "-c", program)
    assert output == "the part of Fashion-MNIST that comes with Kolo 2000\n", output


@backends
@pytest.mark.parametrize("bucket_cap_mb", ["25", "0.1"])
def test_ddp(backend: str, bucket_cap_mb: str) -> None:
    options = ["--data", str(IMAGES), "--epochs", "1", "--bucket-cap-mb", bucket_cap_mb]
    output = run(*TORCHRUN, "ddp.py", "--backend", backend, *options)
    assert "weights are the same bits on all 2 ranks: yes" in output


@backends
def test_average_gradients(backend: str) -> None:
    output = run(*TORCHRUN, "average_gradients.py", "--backend", backend, "--data", str(IMAGES))
    assert output.count("us per step") == 3


@backends
def test_ring_all_reduce(backend: str) -> None:
    assert run(*TORCHRUN, "ring_all_reduce.py", "--backend", backend).count(": equal;") == 3


def test_study(tmp_path: Path) -> None:
    """After ten steps, the weights of all backends equal those of the sequential run within rounding."""
    present = [name for name in BACKENDS if why_not(name) is None]
    run(
        *[sys.executable, "study.py", "--data", str(IMAGES), "--epochs", "1", "--fraction", "0.5", "--models", "mlp"],
        *["--ranks", "2", "--threads", "1", "--sync", "ddp", "--backends", ",".join(present), "--out", str(tmp_path)],
    )
    content = json.loads((tmp_path / "results.json").read_text())
    assert len(content["results"]) == 1 + len(present)
    assert content["comparisons"]
    assert all(item["early"] < ROUNDING for item in content["comparisons"]), content["comparisons"]
    report = (tmp_path / "results.md").read_text()
    assert "| mlp, 235,146 |" in report and "| images/s |" in report


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "too short"),
        (b"\0\0\x0d\x01\0\0\0\1xxxx", "not an idx file of bytes"),
        (b"\0\0\x08\x01\0\0\0\5xxxx", "its header says"),
    ],
)
def test_bad_idx_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_idx(path)
