"""Launchers, free ports and network namespaces."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def mpi_launchers() -> dict[str, list[str]]:
    """The commands that start ranks, by version and without the number of ranks: of ``mpirun`` and ``mpiexec`` on the path and
    of the programs that ``KOLO_TEST_LAUNCHERS`` lists, separated by colons. One command for each version found."""
    named = filter(None, os.environ.get("KOLO_TEST_LAUNCHERS", "").split(":"))
    found = {}
    for program in filter(None, map(shutil.which, ["mpirun", "mpiexec", *named])):
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        version = " ".join(line.strip() for line in said.splitlines()[:2])
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if "Open" in version else []
        # Several names may lead to the same program.
        found.setdefault(os.path.realpath(program), (version, [program, *options, "-n"]))
    return dict(found.values())


def hydras() -> dict[str, str]:
    """Those of the launchers that are Hydra, of MPICH or Intel MPI: the programs by version."""
    return {
        version: command[0] for version, command in mpi_launchers().items() if version.startswith(("HYDRA", "Intel(R) MPI"))
    }


def open_mpis() -> dict[str, str]:
    """Those of the launchers that are Open MPI's, release 5 or later: the programs by version."""
    return {
        version: command[0]
        for version, command in mpi_launchers().items()
        if "Open MPI" in version and not version.split("(Open MPI) ")[-1].startswith(("1.", "2.", "3.", "4."))
    }


def kolo_run(ranks: int, *options: str) -> list[str] | None:
    """The command ``kolo run``, if the program is on the path or has been built; the latest build counts."""
    both = [Path(__file__).parents[3] / "target" / kind / "kolo" for kind in ("release", "debug")]
    built = max((path for path in both if path.exists()), key=lambda path: path.stat().st_mtime, default=None)
    program = shutil.which("kolo") or built
    return None if program is None else [str(program), "run", "-n", str(ranks), *options, "--"]


def srun(ranks: int) -> list[str] | None:
    """Slurm's command, if a Slurm answers."""
    if shutil.which("srun") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0:
        return None
    return ["srun", "-n", str(ranks)]


def meeting_places(folder: str, port: int) -> dict[str, str]:
    """For each URL scheme that gives out ranks: a URL on this host that only this job uses."""
    return {
        "file": f"file://{folder}/meet",
        "tcp": f"tcp://localhost:{port}",
        # Each test has its own port, so two tests never have both the same address and the same port.
        "multicast": f"multicast://239.255.70.{port % 250 + 1}:{port}/job?interface=127.0.0.1",
    }


#: The schemes of :func:`meeting_places`.
SCHEMES = tuple(meeting_places("", 0))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Hosts:
    """Network namespaces joined by a bridge, which stand in for several hosts. Deleted at the end."""

    def __init__(self, count: int) -> None:
        self._base = f"kolo-{os.getpid():x}-{uuid.uuid4().hex[:6]}"
        self._count = count

    def __enter__(self) -> Hosts:
        hub = self.name(self._count)
        for at in range(self._count + 1):
            self._ip(f"netns add {self.name(at)}")
        self._ip(f"-n {hub} link add hub type bridge")
        self._ip(f"-n {hub} link set hub up")
        for host in range(self._count):
            name = self.name(host)
            self._ip(f"-n {name} link add eth0 type veth peer name port{host} netns {hub}")
            self._ip(f"-n {hub} link set port{host} master hub up")
            # An address range reserved for documentation (RFC 5737).
            self._ip(f"-n {name} address add {self.address(host)}/24 dev eth0")
            self._ip(f"-n {name} link set lo up")
            self._ip(f"-n {name} link set eth0 up")
        return self

    def __exit__(self, *_) -> None:
        for at in range(self._count + 1):
            subprocess.run(["ip", "netns", "delete", self.name(at)], capture_output=True)

    def address(self, host: int) -> str:
        return f"192.0.2.{host + 1}"

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command that runs ``command`` on this host."""
        named = f'hostname {self.address(host)}; exec "$@"'
        return ["ip", "netns", "exec", self.name(host), "unshare", "--uts", "sh", "-c", named, "sh", *command]

    def agent(self, folder: Path) -> str:
        """A program that launchers call in place of ssh: ``agent [options] ADDRESS COMMAND...``."""
        program = folder / "agent"
        cases = "".join(f"{self.address(host)}) space={self.name(host)};; " for host in range(self._count))
        program.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f"case $1 in {cases}esac\n"
            'name=$1; shift\nexec ip netns exec "$space" unshare --uts sh -c "hostname $name; $*"\n'
        )
        program.chmod(0o755)
        return str(program)

    def by_open_mpi(self, program: str, each: int, folder: Path, first: int = 0) -> list[str]:
        """The command, without the ranks' program, by which Open MPI's mpirun on host 0 starts ``each`` ranks on each host
        from ``first`` on. Hosts, even mpirun's own, are named by address, since a namespace's name is not a host name."""
        hosts = ",".join(f"{self.address(host)}:{each}" for host in range(first, self._count))
        options = ["--allow-run-as-root", "--bind-to", "none", "--prtemca", "plm_ssh_agent", self.agent(folder)]
        number = each * (self._count - first)
        command = [program, *options, "--prtemca", "prte_if_include", "eth0", "--host", hosts, "-n", str(number)]
        return self.on(0, command)

    def by_hydra(self, program: str, each: int, folder: Path) -> list[str]:
        """The command, without the ranks' program, by which Hydra starts ``each`` ranks on each host."""
        hosts = ",".join(map(self.address, range(self._count)))
        options = ["-launcher", "ssh", "-launcher-exec", self.agent(folder), "-iface", "eth0", "-hosts", hosts]
        return self.on(0, [program, *options, "-ppn", str(each), "-n", str(each * self._count)])

    @staticmethod
    def why_not() -> str | None:
        """Why no namespaces can be made here, or None."""
        if shutil.which("ip") is None:
            return "network namespaces need the ip tool"
        name = f"kolo-probe-{uuid.uuid4().hex[:6]}"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        return None if made.returncode == 0 else f"network namespaces are not permitted here: {made.stderr.strip()}"

    def name(self, at: int) -> str:
        """The namespace of a host."""
        return f"{self._base}-{at}"

    @staticmethod
    def _ip(arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
