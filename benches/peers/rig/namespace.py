"""A network namespace with its own loopback interface and reno, for peers, which use the system's congestion
control."""
import os
import shutil
import subprocess

SETTING = "/proc/sys/net/ipv4/tcp_congestion_control"
MAKE = f"ip link set lo up && echo reno > {SETTING} && echo made && cat"


class Missing(Exception):
    """There is no such namespace; the message gives the reason."""


class Namespace:
    """Exists as long as this object: only a descriptor refers to it, without a name or a process."""

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
        """Returns the prefix that runs a command inside the namespace."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.descriptor}", "--"]

    def told(self, *command):
        """Returns the output of a command inside the namespace."""
        return subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=True).stdout

    def loopback_bytes(self):
        """Returns the bytes sent over its loopback interface so far."""
        for line in self.told("cat", "/proc/net/dev").splitlines():
            name, _, fields = line.partition(":")
            if name.strip() == "lo":
                return int(fields.split()[8])
        raise Missing("its loopback interface is gone")
