"""The command line."""
import argparse
from pathlib import Path

from . import places

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"]
# Further operations that only the MPI programs measure.
MPI_OPERATIONS = ["reduce", "sendrecv", "there_and_back"]
KIB, MIB = 1 << 10, 1 << 20
QUICK_SIZES = [8, KIB, 32 * KIB, 512 * KIB, 8 * MIB, 128 * MIB]
FULL_SIZES = [8 * 4**power for power in range(13)] + [256 * MIB]
# Transport class in which TCP is used, with the peers in a network namespace of their own.
RENO = "tcp-reno"
UNITS = {"K": KIB, "M": MIB, "G": 1 << 30}


def size(text):
    """Parses a number of bytes, with K, M or G for powers of 1024."""
    text = text.upper()
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def listing(parse):
    return lambda text: [parse(part) for part in text.split(",") if part]


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        prog="run", description="Run Kolo and other libraries in turn and write a table of ratios.",
        epilog="Lists are separated by commas. Nothing is installed: setup.sh does that, for those who want it.")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="6 sizes, 3 rounds, 60 ms a point (the default)")
    extent.add_argument("--full", action="store_true", help="14 sizes up to 256 MiB, 5 rounds, 120 ms a point")
    parser.add_argument("--ranks", type=listing(int), default=[2, 4, 8])
    parser.add_argument("--collectives", type=listing(str), default=COLLECTIVES,
                        help="with --mpi also reduce, sendrecv and there_and_back")
    parser.add_argument("--mpi", action="store_true",
                        help="compare MPI libraries: Kolo's runs the very program that MPICH and Intel MPI run")
    parser.add_argument("--sizes", type=listing(size), help="bytes; 32K, 8M and the like are understood")
    parser.add_argument("--transports", type=listing(str), default=["shm", "tcp"],
                        help="of shm, tcp and tcp-reno: over TCP, with the peers in a network namespace that has reno, "
                             "and Kolo as it comes; needs root")
    parser.add_argument("--network", action="append", metavar="OPTIONS",
                        help="compare between hosts instead, on a network of the laboratory: options of `kolo-netlab run`, such "
                             "as '--hosts 4 --rate 1G --delay 25us'; several times for several networks")
    parser.add_argument("--ranks-per-host", type=listing(int), default=[1], help="with --network")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peers", type=listing(str), help="only these, by the names that --list shows")
    parser.add_argument("--list", action="store_true", help="say which peers are there and which are not, and end")
    parser.add_argument("--budget-ms", type=float, help="time for the samples of one point")
    parser.add_argument("--together", action="store_true",
                        help="all collectives in one start of a program: quicker, but libraries take turns less often")
    parser.add_argument("--minutes", type=float, help="begin no further program after this long")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one program")
    parser.add_argument("--shield", choices=["none", "nice", "realtime"], default="none",
                        help="keep other processes of the machine away, from all libraries alike; needs privileges")
    parser.add_argument("--busy", type=int, default=0, metavar="N",
                        help="this many processes that always want a processor run beside each program")
    parser.add_argument("--peers-dir", type=Path, default=places.PEERS, help="where setup.sh has put peers")
    parser.add_argument("--kolo-dir", type=Path, default=places.TARGET / "release",
                        help="where kolo and kolo_bench are")
    parser.add_argument("--out", type=Path, default=places.RESULTS, help="where results go")
    parser.add_argument("--publish", action="store_true", help="write table and plots into docs/ as well")
    parser.add_argument("--report", action="store_true", help="measure nothing; make the table from --out again")
    options = parser.parse_args(arguments)
    options.sizes = sorted(options.sizes or (FULL_SIZES if options.full else QUICK_SIZES))
    options.rounds = options.rounds or (5 if options.full else 3)
    options.budget_ms = options.budget_ms or (120 if options.full else 60)
    known = COLLECTIVES + (MPI_OPERATIONS if options.mpi else [])
    if options.mpi and options.network:
        parser.error("--mpi compares libraries on one host, without --network")
    unknown = set(options.collectives) - set(known) | set(options.transports) - {"shm", "tcp", RENO}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options
