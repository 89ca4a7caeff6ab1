"""A network namespace with a loopback interface of its own and with reno: for peers, which take what the system has."""
import os
import shutil
import subprocess

SETTING = "/proc/sys/net/ipv4/tcp_congestion_control"
MAKE = f"ip link set lo up && echo reno > {SETTING} && echo made && cat"


class Missing(Exception):
    """There is no such namespace, and why."""


class Namespace:
    """Exists for as long as this does: a descriptor keeps it, no name and no process."""

    def __init__(self):
        for tool in ("unshare", "nsenter", "ip"):
            if not shutil.which(tool):
                raise Missing(f"{tool} is not installed")
        maker = subprocess.Popen(["unshare", "--net", "--", "sh", "-c", MAKE], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            if maker.stdout.readline() != "made\n":
                raise Missing("it needs root: " + " ".join(maker.communicate()[1].split()))
            self.descriptor = os.open(f"/proc/{maker.pid}/ns/net", os.O_RDONLY)
        finally:
            maker.communicate()

    @property
    def prefix(self):
        """Runs a command inside."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.descriptor}", "--"]

    def told(self, *command):
        """What a command says inside."""
        return subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=True).stdout

    def loopback_bytes(self):
        """What has gone over its loopback interface so far."""
        for line in self.told("cat", "/proc/net/dev").splitlines():
            name, _, fields = line.partition(":")
            if name.strip() == "lo":
                return int(fields.split()[8])
        raise Missing("its loopback interface is gone")
