"""Where the ranks of ``init_process_group`` meet, and how they get their numbers."""

import os
import socket
import subprocess
import sys
import warnings
from datetime import timedelta

import harness
import pytest
import torch
import torch.distributed as dist
from launchers import SCHEMES, Hosts, free_port, meeting_places

import kolo.torch  # noqa: F401

SECONDS = timedelta(seconds=30)

#: The variables that each launcher sets for a rank on one host, only those that Kolo needs.
VARIABLES = {
    "Open MPI": lambda rank, ranks: {
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_SIZE": ranks,
        "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": ranks,
        "PMIX_NAMESPACE": f"test-{os.getppid()}",
    },
    "Hydra": lambda rank, ranks: {
        "PMI_RANK": rank,
        "PMI_SIZE": ranks,
        "MPI_LOCALRANKID": rank,
        "MPI_LOCALNRANKS": ranks,
    },
    "Cray PALS": lambda rank, ranks: {
        "PALS_RANKID": rank,
        "PALS_LOCAL_RANKID": rank,
        "PALS_APID": f"test-{os.getppid()}",
        "PALS_LOCAL_SIZE": ranks,
        "PMI_RANK": rank,
        "PMI_SIZE": ranks,
    },
    "Slurm": lambda rank, ranks: {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank,
        "SLURM_NTASKS": ranks,
        "SLURM_STEP_NUM_TASKS": ranks,
        "SLURM_NNODES": 1,
        "SLURM_JOB_ID": os.getppid(),
        "SLURM_STEP_ID": 0,
    },
    "kolo run with a file": lambda rank, ranks: {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank},
}


def run(ranks, launcher, body, *arguments, **options):
    """Runs ``body`` on ranks that have only the variables that this launcher sets."""
    return harness.forked(ranks, _launched, launcher, body, arguments, **options)


def _launched(rank, ranks, folder, launcher, body, arguments):
    for name in [name for name in os.environ if name.startswith(("MASTER_", "SLURM_", "OMPI_", "PMI"))]:
        del os.environ[name]
    if launcher is not None:
        told = VARIABLES[launcher](rank, ranks)
        os.environ.update({name: str(value) for name, value in told.items()})
    if launcher == "kolo run with a file":
        os.environ["KOLO_RENDEZVOUS"] = f"file://{folder}/meet"
    os.environ["XDG_RUNTIME_DIR"] = folder
    body(rank, ranks, folder, *arguments)


def expect(rank, ranks):
    """Checks that the group has ``ranks`` ranks, that this is ``rank``, and that an all-reduce works."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)
    x = torch.full((1000,), rank + 1.0)
    dist.all_reduce(x)
    assert torch.all(x == ranks * (ranks + 1) / 2)
    half = dist.new_group([0])
    if rank == 0:
        dist.barrier(half)


@pytest.mark.parametrize("launcher", VARIABLES)
def test_a_launcher_says_it_all(launcher):
    def body(rank, ranks, folder):
        dist.init_process_group("kolo", timeout=SECONDS)
        expect(rank, ranks)
        told = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        assert told == [rank, ranks, rank, ranks]
        dist.destroy_process_group()
        # It works again, though RANK is set now.
        dist.init_process_group("kolo", init_method="kolo://", timeout=SECONDS)
        expect(rank, ranks)
        dist.destroy_process_group()

    run(3, launcher, body)


@pytest.mark.parametrize("master", [False, True])
def test_what_the_launcher_knows_better(master):
    def body(rank, ranks, folder, port):
        # As programs call it that were written for torch's MPI backend, where rank and size do not matter.
        if master:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("kolo", rank=0, world_size=0, timeout=SECONDS)
        expect(rank, ranks)

    run(3, "Open MPI", body, free_port())


def test_a_rank_that_is_not_the_launchers():
    def body(rank, ranks, folder):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            dist.init_process_group("kolo", rank=0, world_size=1, timeout=SECONDS)
        expect(rank, ranks)
        assert any(f"Open MPI started this process as rank {rank} of 2" in str(one.message) for one in seen), seen

    run(2, "Open MPI", body)


def test_another_job_than_the_launchers():
    def body(rank, ranks, folder, port):
        # This call names address, rank and size, so all of them count: the ranks in reverse order, at another address.
        method = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("kolo", init_method=method, rank=ranks - 1 - rank, world_size=ranks, timeout=SECONDS)
        expect(ranks - 1 - rank, ranks)

    run(2, "Open MPI", body, free_port())


@pytest.mark.parametrize("backend", ["gloo", "cpu:kolo,cuda:gloo", "cuda:gloo,cpu:kolo"])
def test_other_backends_meet_there_too(backend):
    def body(rank, ranks, folder):
        dist.init_process_group(backend, timeout=SECONDS)
        expect(rank, ranks)

    run(2, "Hydra", body)


def test_import_tells_what_torchrun_would():
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    program = f"import os; import kolo.torch; print([os.environ.get(name) for name in {names}])"
    clean = {name: value for name, value in os.environ.items() if name not in names}
    told = {name: str(value) for name, value in VARIABLES["Open MPI"](1, 4).items()}

    def printed(**more):
        end = subprocess.run([sys.executable, "-c", program], env={**clean, **more}, capture_output=True, text=True)
        assert end.returncode == 0, end.stderr
        return end.stdout.strip()

    assert printed(**told) == "['1', '4', '1', '4']"
    # Without a launcher, and in a batch script of Slurm, which is not a rank of a job.
    assert printed(SLURM_PROCID="0", SLURM_NTASKS="4") == "[None, None, None, None]"


def test_torch_is_loaded_before_kolo():
    # By then the entry point has already replaced env://; what replaces env:// now must not call it again.
    program = "import torch, torch.distributed as dist, kolo.torch; dist.init_process_group('kolo'); print(dist.get_world_size())"
    told = {**VARIABLES["Open MPI"](0, 1), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
    end = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=harness.LIMIT)
    assert (end.returncode, end.stdout.strip()) == (0, "1"), end.stderr


# Ranks to which no launcher gives a number.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_are_drawn(scheme):
    def body(rank, ranks, folder, port):
        url = meeting_places(folder, port)[scheme]
        for _ in range(2):
            dist.init_process_group("kolo", init_method=url, world_size=ranks, timeout=SECONDS)
            expect(dist.get_rank(), ranks)
            seen = [None] * ranks
            dist.all_gather_object(seen, (dist.get_rank(), os.getpid()))
            assert [at for at, _ in seen] == list(range(ranks)) and len({pid for _, pid in seen}) == ranks
            dist.destroy_process_group()

    run(4, None, body, free_port())


def test_multicast_with_ranks():
    def body(rank, ranks, folder, port):
        method = f"multicast://239.255.70.{port % 250 + 1}:{port}/numbered?interface=127.0.0.1"
        dist.init_process_group("kolo", init_method=method, rank=rank, world_size=ranks, timeout=SECONDS)
        expect(rank, ranks)

    run(3, None, body, free_port())


def test_launcher_numbers_a_file():
    def body(rank, ranks, folder):
        dist.init_process_group("kolo", init_method=f"file://{folder}/meet", timeout=SECONDS)
        expect(rank, ranks)

    run(3, "Hydra", body)


def test_nobody_says_how_many():
    def body(rank, ranks, folder):
        with pytest.raises(ValueError, match="rank parameter missing|expected, but not set"):
            dist.init_process_group("kolo", init_method=f"file://{folder}/meet", timeout=SECONDS)
        with pytest.raises(ValueError, match="RANK expected, but not set"):
            dist.init_process_group("kolo", timeout=SECONDS)

    run(1, None, body)


@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_the_store_is_found_over_both_kinds_of_addresses(address, monkeypatch):
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    monkeypatch.setattr("kolo._kolo.reachable_at", lambda: [address])

    def body(rank, ranks, folder):
        os.environ["KOLO_HOST_ID"] = f"host-{rank}"
        dist.init_process_group("kolo", timeout=SECONDS)
        expect(rank, ranks)

    run(2, "Slurm", body)


def test_the_store_is_found_between_hosts():
    why_not = Hosts.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    program = (
        "import torch, torch.distributed as dist, kolo.torch\n"
        "dist.init_process_group('kolo')\n"
        "x = torch.ones(3); dist.all_reduce(x); print('sum', x[0].item(), dist.group.WORLD.kolo_summary())\n"
        "dist.new_group([1])\n"
        "dist.destroy_process_group()"
    )
    with Hosts(2) as net:
        told = [
            {**VARIABLES["Slurm"](rank, 2), "SLURM_NNODES": 2, "SLURM_LOCALID": 0, "SLURM_NODELIST": net.address(0)}
            for rank in range(2)
        ]
        environments = [{name: str(value) for name, value in one.items()} for one in told]
        ended = harness.programs([net.on(host, [sys.executable, "-c", program]) for host in range(2)], environments)
        assert all("sum 2.0" in end.text and "tcp to 1 rank" in end.text for end in ended), ended
