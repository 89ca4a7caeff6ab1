"""oneCCL without SYCL, with Intel MPI's launcher, in the two configurations that suit a shared machine."""
import os
import shutil
import subprocess
import tempfile

from . import places
from .peer import PROCESSORS, Launch, Library, oversubscribed
from .mpi import identify

COLLECTIVES = "ALLGATHER ALLREDUCE ALLTOALL BARRIER BCAST BROADCAST REDUCE REDUCE_SCATTER".split()
ARCHIVE = "lib/ccl/cpu/lib/libccl.a"


def find(peers_dir):
    roots = [path.parents[4] for path in sorted(peers_dir.glob(f"*/{ARCHIVE}"))]
    launchers = [path for path in sorted(peers_dir.glob("*/bin/mpiexec")) if identify(path)[0] == "intelmpi"]
    if not roots:
        return [], {"oneCCL": f"no environment under the peers' directory has {ARCHIVE}"}
    if not launchers:
        return [], {"oneCCL": "needs Intel MPI"}
    program, problem = build(roots[0])
    if problem:
        return [], {"oneCCL": problem}
    title = f"oneCCL {version(roots[0])}"
    return [Library("oneccl", title, start(direct, launchers[0], program)),
            Library("oneccl-w", f"{title} with workers", start(workers, launchers[0], program))], {}


def version(root):
    for path in root.glob("lib/python*/site-packages/oneccl_devel-*.dist-info"):
        return path.name.removeprefix("oneccl_devel-").removesuffix(".dist-info")
    return "?"


def build(root):
    if not shutil.which("g++"):
        return None, "no C++ compiler"
    source, program = places.HERE / "ccl_bench.cpp", places.BUILT / "ccl_bench"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program, None
    places.BUILT.mkdir(parents=True, exist_ok=True)
    compiled = subprocess.run(
        ["g++", "-O2", "-std=c++17", f"-I{root}/include", "-o", program, source, root / ARCHIVE, f"-L{root}/lib",
         f"-Wl,-rpath,{root}/lib", "-lirc", "-lhwloc", "-pthread", "-ldl"], capture_output=True, text=True)
    if compiled.returncode:
        lines = [line for line in compiled.stderr.splitlines() if "error" in line or "cannot find" in line]
        return None, "compiling failed: " + (lines or ["?"])[0]
    return program, None


def start(settings, launcher, program):
    def launch(ranks, transport):
        # The ranks find each other through this file.
        store = os.path.join(tempfile.gettempdir(), f"ccl_bench.{os.getpid()}.{os.urandom(4).hex()}")
        environment = {"LD_LIBRARY_PATH": str(launcher.parent.parent / "lib"), "CCL_LOG_LEVEL": "error",
                       "CCL_KVS_IFACE": "lo", "BENCH_STORE": store, **settings(ranks, transport)}
        if transport == "tcp":
            environment.update(I_MPI_FABRICS="ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="lo",
                               I_MPI_COLL_INTRANODE="pt2pt")
        return Launch([str(launcher), "-n", str(ranks), str(program)], environment, leftovers=[store])

    return launch


def direct(ranks, transport):
    """Runs without worker threads; with more ranks than processors, uses Intel MPI's blocking collectives, which
    yield."""
    if oversubscribed(ranks):
        return {"CCL_WORKER_OFFLOAD": "0", "CCL_ATL_TRANSPORT": "mpi", "CCL_ATL_SYNC_COLL": "1", "I_MPI_PIN": "0",
                "I_MPI_THREAD_YIELD": "2", **{f"CCL_{collective}": "direct" for collective in COLLECTIVES}}
    if transport == "tcp":
        chosen = "recursive_doubling:0-2097152;nreduce:2097153-max"
    else:
        chosen = "recursive_doubling:0-65536;rabenseifner:65537-2097152;ring:2097153-max"
    return {"CCL_WORKER_OFFLOAD": "0", "CCL_ATL_TRANSPORT": "ofi" if transport == "tcp" else "mpi",
            "CCL_ALLREDUCE": chosen}


def workers(ranks, transport):
    """Runs a worker thread for each rank, which yields: slow for small operations, fast for large ones."""
    environment = {"CCL_WORKER_OFFLOAD": "1", "CCL_YIELD": "sched_yield", "CCL_SPIN_COUNT": "1",
                   "CCL_ALLREDUCE": "nreduce", "I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "2",
                   "CCL_WORKER_AFFINITY": ",".join(str(rank % PROCESSORS) for rank in range(ranks))}
    if transport == "tcp":
        return {**environment, "CCL_ATL_TRANSPORT": "mpi"}
    return {**environment, "CCL_ATL_TRANSPORT": "ofi", "CCL_ATL_SHM": "1"}
