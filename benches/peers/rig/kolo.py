"""Kolo itself, as one of the libraries."""
import subprocess
import sys

from . import places
from .library import Launch, Library

BUILD = ["cargo", "build", "--release", "-p", "kolo-cli", "-p", "kolo-benches", "--bins"]


def find(directory):
    """Kolo, built if it is not."""
    kolo, bench = directory / "kolo", directory / "kolo_bench"
    if not (kolo.exists() and bench.exists()):
        print(f"run: {' '.join(BUILD)}", file=sys.stderr)
        subprocess.run(BUILD, cwd=places.REPOSITORY, check=True)

    def launch(ranks, transport):
        environment = {"KOLO_TRANSPORT": transport}
        if transport == "tcp":
            environment["KOLO_SOCKET_IFNAME"] = "lo"
        return Launch([str(kolo), "run", "-n", str(ranks), "--", str(bench)], environment)

    version = subprocess.run([kolo, "--version"], capture_output=True, text=True).stdout.split()[-1:]
    return Library("kolo", " ".join(["Kolo", *version]), launch)
