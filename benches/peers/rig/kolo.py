"""Kolo itself, as one of the libraries."""
import subprocess
import sys

from . import mpi, places
from .peer import Launch, Library

BUILD = ["cargo", "build", "--release", "-p", "kolo-cli", "-p", "kolo-benches", "-p", "kolo-mpi"]
# Where Kolo's MPI library has the name of the others'.
LINKED = places.BUILT / "kolo"


def find(directory, through_mpi=False):
    """Returns Kolo, and builds it first if necessary. Its program is `kolo_bench`, or the one that MPICH and Intel MPI
    run, with Kolo's MPI library."""
    kolo, bench, library = (directory / name for name in ("kolo", "kolo_bench", "libmpi.so"))
    if not (kolo.exists() and bench.exists() and (library.exists() or not through_mpi)):
        print(f"run: {' '.join(BUILD)}", file=sys.stderr)
        subprocess.run(BUILD, cwd=places.REPOSITORY, check=True)
    if through_mpi:
        bench, problem = mpi.borrow()
        if problem:
            sys.exit(f"run: --mpi {problem}")
        if not library.exists():
            sys.exit(f"run: --mpi needs {library}; see --kolo-dir")
        link(library)

    def launch(ranks, transport):
        environment = {"KOLO_TRANSPORT": transport}
        if transport == "tcp":
            environment["KOLO_SOCKET_IFNAME"] = "lo"
        if through_mpi:
            environment["LD_LIBRARY_PATH"] = str(LINKED)
        return Launch([str(kolo), "run", "-n", str(ranks), "--", str(bench)], environment)

    version = told([kolo, "--version"])[-1:]
    commit = [f"({commit})" for commit in told(["git", "rev-parse", "--short", "HEAD"])[:1]]
    title = "Kolo's MPI library" if through_mpi else "Kolo"
    return Library("kolo", " ".join([title, *version, *commit]), launch)


def link(library, folder=LINKED):
    """Gives the library the name under which programs look for it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / mpi.COMMON_ABI.decode()
    name.unlink(missing_ok=True)
    name.symlink_to(library)


def told(command):
    """Returns the words that a command prints; none if it fails."""
    try:
        return subprocess.run(command, cwd=places.REPOSITORY, capture_output=True, text=True).stdout.split()
    except OSError:
        return []
