"""A program for arrays runs under the launchers that Kolo detects by itself."""

import pytest
from harness import programs, python
from launchers import PROGRAMS, Hosts, free_port, hydras, mpi_launchers, srun

PROGRAM = PROGRAMS / "array_sum.py"


def test_plain_processes():
    port = str(free_port())
    environments = [
        {"RANK": str(r), "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": port} for r in range(3)
    ]
    for rank, end in enumerate(programs([python(PROGRAM)] * 3, environments)):
        assert f"rank {rank} of 3: 6" in end.text


@pytest.mark.parametrize("version", mpi_launchers() or [None])
def test_mpirun(version):
    if version is None:
        pytest.skip("there is no mpirun and no mpiexec on the path, and KOLO_TEST_LAUNCHERS lists none")
    [end] = programs([[*mpi_launchers()[version], "3", *python(PROGRAM)]], [{}])
    assert all(f"rank {rank} of 3: 6" in end.text for rank in range(3))


def test_srun():
    command = srun(2)
    if command is None:
        pytest.skip("there is no Slurm that runs")
    [end] = programs([command + python(PROGRAM)], [{}])
    assert all(f"rank {rank} of 2: 3" in end.text for rank in range(2))


def test_two_hosts():
    why_not = Hosts.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    with Hosts(2) as net:
        environments = [
            {"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": net.address(0), "MASTER_PORT": "29500"} for r in range(2)
        ]
        ended = programs([net.on(host, python(PROGRAM)) for host in range(2)], environments)
        assert all("tcp to 1 rank" in end.text for end in ended), ended


@pytest.mark.parametrize("version", hydras() or [None])
def test_hydra_on_two_hosts(version, tmp_path):
    why_not = Hosts.why_not()
    if version is None or why_not is not None:
        pytest.skip(why_not or "there is no Hydra on the path, and KOLO_TEST_LAUNCHERS lists none")
    with Hosts(2) as net:
        [end] = programs([[*net.by_hydra(hydras()[version], 2, tmp_path), *python(PROGRAM)]], [{}])
        for rank in range(4):
            line = next(line for line in end.text.splitlines() if f"rank {rank} of 4: 10;" in line)
            assert "shm to 1 rank" in line and "tcp to 2 rank" in line
