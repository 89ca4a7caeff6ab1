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


def mpirun(ranks: int) -> list[str] | None:
    """The command of Open MPI or MPICH, if there is one."""
    found = shutil.which("mpirun")
    if found is None:
        return None
    version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" in version:
        return [found, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [found, "-n", str(ranks)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Hosts:
    """Network namespaces joined by a bridge: as near to several hosts as one host gets. Deleted at the end."""

    def __init__(self, count: int) -> None:
        self._base = f"kolo-{os.getpid():x}-{uuid.uuid4().hex[:6]}"
        self._count = count

    def __enter__(self) -> Hosts:
        hub = self._name(self._count)
        for at in range(self._count + 1):
            self._ip(f"netns add {self._name(at)}")
        self._ip(f"-n {hub} link add hub type bridge")
        self._ip(f"-n {hub} link set hub up")
        for host in range(self._count):
            name = self._name(host)
            self._ip(f"-n {name} link add eth0 type veth peer name port{host} netns {hub}")
            self._ip(f"-n {hub} link set port{host} master hub up")
            # A range set aside for documentation (RFC 5737).
            self._ip(f"-n {name} address add {self.address(host)}/24 dev eth0")
            self._ip(f"-n {name} link set lo up")
            self._ip(f"-n {name} link set eth0 up")
        return self

    def __exit__(self, *_) -> None:
        for at in range(self._count + 1):
            subprocess.run(["ip", "netns", "delete", self._name(at)], capture_output=True)

    def address(self, host: int) -> str:
        return f"192.0.2.{host + 1}"

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command, on that host."""
        return ["ip", "netns", "exec", self._name(host), *command]

    @staticmethod
    def why_not() -> str | None:
        """Why there can be none here."""
        if shutil.which("ip") is None:
            return "network namespaces need the ip tool"
        name = f"kolo-probe-{uuid.uuid4().hex[:6]}"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        return None if made.returncode == 0 else f"network namespaces are not permitted here: {made.stderr.strip()}"

    def _name(self, at: int) -> str:
        return f"{self._base}-{at}"

    @staticmethod
    def _ip(arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
