"""Open MPI, MPICH and Intel MPI: which of them are installed, and the settings that suit each best on one machine."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import places
from .peer import Launch, Library, oversubscribed

LAUNCHERS = ["mpiexec.openmpi", "mpiexec.mpich", "mpiexec", "mpirun"]
# Text in the output of `mpiexec --version`.
FLAVOURS = {
    "openmpi": re.compile(r"(?:Open MPI|OpenRTE)\)? v?(\d[\w.]*)"),
    "intelmpi": re.compile(r"Intel\(R\) MPI Library.*?Version (\d[\w.]*)"),
    "mpich": re.compile(r"Version:\s+(\d[\w.]*)"),
}
TITLES = {"openmpi": "Open MPI", "intelmpi": "Intel MPI", "mpich": "MPICH"}
# MPICH from 3.1 on and Intel MPI share this ABI: a program built with one runs with the other.
COMMON_ABI = b"libmpi.so.12"


def find(peers_dir):
    """Returns all usable implementations, and the reasons why others are not usable."""
    libraries, missing, found = [], {}, {}
    for launcher in launchers(peers_dir):
        flavour, version = identify(launcher)
        if flavour:
            found.setdefault((flavour, version), launcher)
    for flavour in TITLES:
        if not any(flavour == other for other, _ in found):
            missing[TITLES[flavour]] = "no launcher on the PATH or among the installed peers"
    # Intel MPI comes last, since it may need the program built with MPICH.
    for (flavour, version), launcher in sorted(found.items(), key=lambda item: (item[0][0] == "intelmpi", item[0])):
        name = flavour if flavour == "intelmpi" else flavour + version.split(".")[0]
        program, problem = borrow() if flavour == "intelmpi" else build(name, launcher)
        if problem:
            missing[f"{TITLES[flavour]} {version}"] = problem
        elif all(library.name != name for library in libraries):
            libraries.append(library(name, flavour, version, launcher, program))
    return libraries, missing


def launchers(peers_dir):
    directories = sorted(peers_dir.glob("*/bin")) + [Path(sys.prefix) / "bin"]
    directories += [Path(entry) for entry in os.get_exec_path()]
    for directory in directories:
        for name in LAUNCHERS:
            if os.access(directory / name, os.X_OK):
                yield directory / name


def identify(launcher):
    try:
        told = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=20,
                              env=with_path(launcher), stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None, None
    for flavour, pattern in FLAVOURS.items():
        match = pattern.search(told.stdout + told.stderr)
        if match:
            return flavour, match[1].rstrip(".")
    return None, None


def with_path(launcher):
    """Returns an environment with the launcher's folder first in PATH, without which wheels do not find their
    helpers."""
    return {**os.environ, "PATH": f"{launcher.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def build(name, launcher):
    """Compiles the program with the compiler wrapper that belongs to a launcher."""
    wrapper = launcher.with_name(re.sub("^(mpiexec|mpirun)", "mpicc", launcher.name))
    if not wrapper.exists():
        return None, f"no compiler wrapper {wrapper.name} beside its launcher"
    if not (shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")):
        return None, "no C compiler"
    source, program = places.HERE / "mpi_bench.c", places.BUILT / f"mpi_bench.{name}"
    if program.exists() and program.stat().st_mtime > max(source.stat().st_mtime, wrapper.stat().st_mtime):
        return program, None
    places.BUILT.mkdir(parents=True, exist_ok=True)
    compiled = subprocess.run([wrapper, "-O2", "-o", program, source], capture_output=True, text=True,
                              env=with_path(wrapper))
    if compiled.returncode:
        return None, "compiling failed: " + (compiled.stderr.strip().splitlines() or ["?"])[-1]
    return program, None


def borrow():
    """Returns a program built with MPICH for Intel MPI, whose wheel has no compiler wrapper."""
    for program in sorted(places.BUILT.glob("mpi_bench.mpich*"), reverse=True):
        if COMMON_ABI in program.read_bytes():
            return program, None
    return None, f"needs a program built with an MPICH that has {COMMON_ABI.decode()}"


def library(name, flavour, version, launcher, program):
    settings = {"openmpi": openmpi, "mpich": mpich, "intelmpi": intelmpi}[flavour]
    major = int(version.split(".")[0])

    def launch(ranks, transport):
        arguments, environment = settings(major, ranks, transport)
        environment["PATH"] = with_path(launcher)["PATH"]
        if flavour == "intelmpi":
            environment["LD_LIBRARY_PATH"] = str(launcher.parent.parent / "lib")
        return Launch([str(launcher), "-n", str(ranks), *arguments, str(program)], environment)

    return Library(name, f"{TITLES[flavour]} {version}", launch, never_yields=flavour == "mpich" and major < 5)


def openmpi(major, ranks, transport):
    arguments = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if oversubscribed(ranks):
        arguments += ["--oversubscribe"] if major < 5 else ["--map-by", ":OVERSUBSCRIBE"]
        arguments += ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    else:
        arguments += ["--bind-to", "core"]
    memory = "vader" if major < 5 else "sm"
    arguments += ["--mca", "pml", "ob1", "--mca", "btl", ("tcp" if transport == "tcp" else memory) + ",self"]
    if transport == "tcp":
        arguments += ["--mca", "btl_tcp_if_include", "lo"]
    return arguments, {}


def mpich(major, ranks, transport):
    environment = {}
    if oversubscribed(ranks) and major >= 5:
        # Open MPI's shared-memory collectives spin without yielding; those over messages yield.
        for collective in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE"):
            environment[f"MPIR_CVAR_{collective}_POSIX_INTRA_ALGORITHM"] = "mpir"
    if transport == "tcp":
        environment["MPIR_CVAR_NOLOCAL"] = "1"
        if major >= 5:
            environment.update(MPIR_CVAR_CH4_NETMOD="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo")
        else:
            environment.update(UCX_TLS="tcp,self", UCX_NET_DEVICES="lo", FI_PROVIDER="tcp", FI_TCP_IFACE="lo")
    return [] if oversubscribed(ranks) else ["-bind-to", "core"], environment


def intelmpi(_, ranks, transport):
    environment = {}
    if oversubscribed(ranks):
        environment.update(I_MPI_PIN="0", I_MPI_THREAD_YIELD="2")
    if transport == "tcp":
        # Without the last setting, small collectives go through shared memory.
        environment.update(I_MPI_FABRICS="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo", I_MPI_COLL_INTRANODE="pt2pt")
    else:
        environment.update(I_MPI_FABRICS="shm")
    return [], environment
