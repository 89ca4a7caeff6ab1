"""The same program, unchanged, runs under every launcher, on one host and on several."""

import importlib.metadata

import pytest
import torch
from harness import programs, python
from launchers import PROGRAMS, Hosts, free_port, hydras, kolo_run, mpi_launchers, open_mpis, srun, torchrun

PROGRAM = PROGRAMS / "torch_sum.py"


def torch_finds_kolo() -> bool:
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    # The versions of Python for which such a torch exists have this form of entry_points().
    return version >= (2, 14) and any(
        point.name == "kolo" for point in importlib.metadata.entry_points(group="torch.distributed.backends")
    )


pytestmark = pytest.mark.skipif(
    not torch_finds_kolo(),
    reason="the program leaves it to torch to find Kolo, which takes torch 2.14 and an installed wheel",
)


def expect(text: str, ranks: int, *words: str) -> None:
    total = ranks * (ranks + 1) // 2
    for rank in range(ranks):
        line = next((line for line in text.splitlines() if line.find(f"rank {rank} of {ranks}: {total};") >= 0), None)
        assert line is not None, text
        assert all(word in line for word in words), line


def test_plain_processes():
    port = str(free_port())
    environments = [
        {"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": port} for r in range(3)
    ]
    ended = programs([python(PROGRAM)] * 3, environments)
    expect("".join(end.text for end in ended), 3, "shm")


def test_torchrun():
    [end] = programs([torchrun("--standalone", "--nproc-per-node", "3", str(PROGRAM))], [{}])
    expect(end.text, 3, "shm")


def test_torchrun_over_tcp():
    command = torchrun("--standalone", "--nproc-per-node", "2", str(PROGRAM))
    [end] = programs([command], [{"KOLO_TRANSPORT": "tcp"}])
    expect(end.text, 2, "tcp")


@pytest.mark.parametrize("version", mpi_launchers() or [None])
def test_mpirun(version):
    if version is None:
        pytest.skip("there is no mpirun and no mpiexec on the path, and KOLO_TEST_LAUNCHERS lists none")
    [end] = programs([[*mpi_launchers()[version], "3", *python(PROGRAM)]], [{}])
    expect(end.text, 3)


def test_srun():
    command = srun(2)
    if command is None:
        pytest.skip("there is no Slurm that runs")
    [end] = programs([command + python(PROGRAM)], [{}])
    expect(end.text, 2)


@pytest.mark.parametrize("place", [[], ["--rendezvous"]])
def test_kolo_run(place, tmp_path):
    command = kolo_run(3)
    if command is None:
        pytest.skip("the program kolo is neither on the path nor built")
    command[2:2] = [*place, f"file://{tmp_path}/meet"] if place else []
    [end] = programs([command + python(PROGRAM)], [{}])
    expect(end.text, 3, "shm")


def hosts(count):
    why_not = Hosts.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    return Hosts(count)


def test_torchrun_on_two_hosts():
    with hosts(2) as net:
        # No other process is in these namespaces, so every port is free.
        place = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", net.address(0), "--master-port", "29500"]
        commands = [net.on(host, torchrun(*place, "--node-rank", str(host), str(PROGRAM))) for host in range(2)]
        ended = programs(commands, [{}, {}])
        expect("".join(end.text for end in ended), 4, "shm to 1 rank", "tcp to 2 rank")


@pytest.mark.parametrize("version", hydras() or [None])
def test_hydra_on_two_hosts(version, tmp_path):
    if version is None:
        pytest.skip("there is no Hydra on the path, and KOLO_TEST_LAUNCHERS lists none")
    with hosts(2) as net:
        [end] = programs([[*net.by_hydra(hydras()[version], 2, tmp_path), *python(PROGRAM)]], [{}])
        expect(end.text, 4, "shm to 1 rank", "tcp to 2 rank")


@pytest.mark.parametrize("version", open_mpis() or [None])
@pytest.mark.parametrize("first", [0, 1])
def test_open_mpi_on_several_hosts(version, first, tmp_path):
    if version is None:
        pytest.skip("there is no mpirun of Open MPI 5 on the path, and KOLO_TEST_LAUNCHERS lists none")
    with hosts(2 + first) as net:
        command = [*net.by_open_mpi(open_mpis()[version], 2, tmp_path, first), *python(PROGRAM)]
        if first == 0:
            [end] = programs([command], [{}])
            expect(end.text, 4, "shm to 1 rank", "tcp to 2 rank")
        else:  # Rank 0 is on another host than mpirun, and fails at once with an error that says so.
            [end] = programs([command], [{}], check=False)
            assert end.code != 0
            assert f"rank 0 is on {net.address(1)} and mpirun on {net.address(0)}" in end.text, end.text


def test_plain_processes_on_three_hosts():
    with hosts(3) as net:
        environments = [
            {"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": net.address(0), "MASTER_PORT": "29500"} for r in range(3)
        ]
        ended = programs([net.on(host, python(PROGRAM)) for host in range(3)], environments)
        expect("".join(end.text for end in ended), 3, "tcp")
