"""The recipes, as far as they run without a cluster: `python -m pytest -rs deploy`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kolo", reason="Kolo's Python package is not installed")
pytest.importorskip("numpy")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT_SECONDS = 120


def run(commands: list[list[str]], environments: list[dict]) -> str:
    """Runs the processes and returns what they print; all of them must succeed within the time limit."""
    started = [
        subprocess.Popen(command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for command, environment in zip(commands, environments)
    ]
    try:
        text = "".join(process.communicate(timeout=LIMIT_SECONDS)[0] for process in started)
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), text
    return text


@pytest.mark.parametrize("name", ["indexed-job.yaml", "jobset.yaml"])
def test_kubernetes(name: str, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    documents = list(yaml.safe_load_all((HERE / "kubernetes" / name).read_text()))
    job = documents[-1]
    if job["kind"] == "JobSet":
        [replicated] = job["spec"]["replicatedJobs"]
        spec, host = replicated["template"]["spec"], f"{job['metadata']['name']}-{replicated['name']}-0-0.{job['metadata']['name']}"
        assert job["spec"]["network"]["enableDNSHostnames"]
    else:
        spec, service = job["spec"], documents[0]
        # All ranks fail after a loss, and each counts.
        assert spec["backoffLimit"] >= spec["completions"] and spec["backoffLimit"] % spec["completions"] == 0
        pod = spec["template"]["spec"]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
        assert pod["subdomain"] == service["metadata"]["name"]
        host = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["restartPolicy"] == "Never"
    [container] = pod["containers"]
    # The image that the page builds is in no registry, and "latest" has the nodes ask one.
    assert container["image"] == f"{_built_image()}:latest" and container["imagePullPolicy"] == "IfNotPresent"
    told = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert int(told["WORLD_SIZE"]) == spec["completions"] and told["MASTER_ADDR"] == host
    # Run the same command with the same variables, except those whose values only a cluster has.
    port = str(_free_port())
    here = {**told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "KOLO_JOB_SECRET": "of the test"}
    python = [sys.executable, *container["command"][1:]]
    text = run([python] * 4, [{**here, "RANK": str(rank)} for rank in range(4)])
    assert text.count("4.0 rank") == 4, text


def test_what_the_image_copies_is_what_is_built() -> None:
    recipe = (HERE / "docker" / "Dockerfile").read_text()
    packages = re.findall(r"-p (\S+)", recipe)
    made = {"kolo-cli": {"kolo"}, "kolo-c": {"libkolo.so"}, "kolo-mpi": {"libmpi.so"}, "kolo-mpi-abi": {"libmpi_abi.so"}}
    manifests = "".join(path.read_text() for path in ROOT.glob("*/Cargo.toml")) + "".join(
        path.read_text() for path in ROOT.glob("bindings/**/Cargo.toml")
    )
    assert all(f'name = "{package}"' in manifests for package in packages), packages
    copied = set(re.findall(r"target/release/(\S+)", recipe))
    assert copied == set().union(*(made[package] for package in packages))
    assert re.search(r"^USER (?!0|root)", recipe, re.MULTILINE)


def test_batch_script_is_shell(tmp_path: Path) -> None:
    script = HERE / "slurm" / "train.sbatch"
    # The test's own srun prints what it was asked to run, and the length of the secret that it was given.
    (tmp_path / "srun").write_text('#!/bin/sh\necho "asked: $*; secret of ${#KOLO_JOB_SECRET}"\n')
    (tmp_path / "srun").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert "python3 train.py; secret of 32" in run([["bash", str(script)]], [path])
    assert "asked: --kill-on-bad-exit=1 --label prog a b;" in run([["bash", str(script), "prog", "a b"]], [path])


def test_slurm() -> None:
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0:
        pytest.skip("there is no Slurm that runs")
    command = ["sbatch", "--wait", "--nodes=1", "--output=/dev/null", str(HERE / "slurm" / "train.sbatch")]
    run([[*command, sys.executable, "-c", "import kolo; kolo.init().barrier()"]], [{}])


@pytest.mark.parametrize(("module", "program"), [("ray", "ray/kolo_on_ray.py"), ("dask.distributed", "dask/kolo_on_dask.py")])
def test_frameworks(module: str, program: str) -> None:
    found = importlib.util.find_spec(module.partition(".")[0])
    # The folders here have the same names, and Python would find them, but they are not the packages.
    if found is None or found.origin is None:
        pytest.skip(f"{module} is not installed")
    assert "2 ranks on" in run([[sys.executable, str(HERE / program), "--ranks", "2"]], [{}])


def _built_image() -> str:
    found = re.search(r"`docker build .* -t (\S+) \.`", (HERE / "README.md").read_text())
    assert found is not None
    return found.group(1)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
