"""Kolo itself, as one of the libraries."""
import subprocess
import sys

from . import places
from .peer import Launch, Library

BUILD = ["cargo", "build", "--release", "-p", "kolo-cli", "-p", "kolo-benches", "--bins"]


def find(directory):
    """Returns Kolo, and builds it first if necessary."""
    kolo, bench = directory / "kolo", directory / "kolo_bench"
    if not (kolo.exists() and bench.exists()):
        print(f"run: {' '.join(BUILD)}", file=sys.stderr)
        subprocess.run(BUILD, cwd=places.REPOSITORY, check=True)

    def launch(ranks, transport):
        environment = {"KOLO_TRANSPORT": transport}
        if transport == "tcp":
            environment["KOLO_SOCKET_IFNAME"] = "lo"
        return Launch([str(kolo), "run", "-n", str(ranks), "--", str(bench)], environment)

    version = told([kolo, "--version"])[-1:]
    commit = [f"({commit})" for commit in told(["git", "rev-parse", "--short", "HEAD"])[:1]]
    return Library("kolo", " ".join(["Kolo", *version, *commit]), launch)


def told(command):
    """Returns the words that a command prints; none if it fails."""
    try:
        return subprocess.run(command, cwd=places.REPOSITORY, capture_output=True, text=True).stdout.split()
    except OSError:
        return []
