#!/usr/bin/env python3
"""PyTorch's own distributed_test on several backends, side by side.

    suite.py [--ranks 3,4] [--backends gloo,kolo] [--gates shipped|open|data] [--only SUBSTRING] [--lazy] [--out FILE]
    suite.py --file test_c10d_fault_tolerance.py [--only SUBSTRING]

The suite's classes run as PyTorch ships them, from ``torch.testing._internal``, each test in its own processes. The suite
decides by a backend's name which tests it may run. ``shipped`` leaves that as it is; ``open`` lets each of the backends run all
tests that Gloo or MPI may run; ``data`` is like ``open``, but does not expect events of the profiler. A table is printed. The
exit status is 0 unless a test failed on Kolo that did not fail on Gloo.

With ``--file`` it runs PyTorch's test of ``reconfigure`` on Kolo. That file is not in the wheel: take it from PyTorch's sources, at the
commit that ``torch.version.git_version`` names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTCOMES = ("passed", "failed", "timed out", "skipped")
GOOD = ("passed", "skipped")
#: The outcome of a test that the run did not reach.
NOT_RUN = "not run"
#: Time limit in seconds for all tests of one backend: several times what they take.
RUN_SECONDS = 1500
#: Time limits in seconds: of a test, and of a group for which the test sets none.
TEST_SECONDS, GROUP_SECONDS = 60, 20

_NOT_GLOO = re.compile(r'BACKEND != "gloo"')
_ERROR = re.compile(r"\S*(Error|Exception|Mismatch|Timeout|Aborted|PeerLost)\b.*")
_NOT_MPI = re.compile(r'BACKEND != "mpi"')


def opened(source: str, profiles: bool) -> str:
    """The suite's source, changed so that the backend under test may run what Gloo and MPI may run."""
    source = _NOT_GLOO.sub('BACKEND not in ("gloo", OPENED)', source)
    source = _NOT_MPI.sub('BACKEND not in ("mpi", OPENED)', source)
    source = source.replace('if BACKEND == "mpi" or BACKEND == "gloo":', 'if BACKEND in ("mpi", "gloo", OPENED):')
    # Tests that require Gloo need just a backend for the CPU; whether Gloo itself is built does not matter to them.
    source = source.replace('require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", OPENED})')
    lists = "PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"
    names = "".join(f"{name}.append(OPENED)\n" for name in lists) if profiles else ""
    marker = 'BACKEND = os.environ["BACKEND"]\n'
    if marker not in source:
        sys.exit("this version of the suite names its backend in another way: its gates cannot be opened")
    return source.replace(marker, f'{marker}OPENED = os.environ["BACKEND"]\n{names}', 1)


def load(gates: str):
    """The suite as a module."""
    import importlib.util

    import torch.testing._internal.common_distributed as common

    spec = importlib.util.find_spec("torch.testing._internal.distributed.distributed_test")
    backend = os.environ["BACKEND"]
    if gates != "shipped":
        for feature in ("ddp", "subgroup", "gpu"):
            common.DistTestCases.backend_feature[feature].add(backend)
    common.DistTestCases.backend_feature["plugin"].add(backend)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    source = Path(spec.origin).read_text()
    if gates != "shipped":
        source = opened(source, profiles=gates == "open")
    exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    return module


def run_one(gates: str, only: str, out: str) -> None:
    """Runs all tests on the backend that the environment names; writes the outcome of each."""
    import datetime
    import unittest

    import torch
    import torch.distributed as dist
    import torch.testing._internal.common_distributed as common

    if os.environ["BACKEND"] == "kolo":
        import kolo.torch  # noqa: F401
    dist.distributed_c10d.default_pg_timeout = datetime.timedelta(seconds=GROUP_SECONDS)
    common.TIMEOUT_DEFAULT = TEST_SECONDS
    common.TIMEOUT_OVERRIDE = {}
    module = load(gates)
    base = module.TestDistBackend, module.DistributedTest._DistTestBase

    class Suite(*base):
        def setUp(self):
            super().setUp()
            # By fork, because a fork has everything imported already.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Suite.__module__ = "__main__"
    loader = unittest.TestLoader()
    names = [name for name in loader.getTestCaseNames(Suite) if only in name]
    # A skipped test ends its ranks with a special exit status, from which the parent makes a skip again.
    found: dict[str, list[str]] = {name: [NOT_RUN, ""] for name in names}
    for name in names:
        result = unittest.TestResult()
        Suite(name).run(result)
        outcome, text = "passed", ""
        for _, text in (*result.failures, *result.errors):
            outcome = "timed out" if "terminated or timed out after" in text else "failed"
        if result.skipped:
            outcome, text = "skipped", result.skipped[0][1]
        found[name] = [outcome, text[-4000:]]
        Path(out).write_text(json.dumps(found))


def run_file(path: str, only: str) -> int:
    """Runs PyTorch's test of ``reconfigure``, with Kolo among its backends."""
    import dataclasses
    import importlib.util
    import unittest

    import torch
    import torch.testing._internal.common_distributed as common

    import kolo.torch  # noqa: F401

    spec = importlib.util.spec_from_file_location("fault_tolerance", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Versions of the file describe a backend differently: by a pair, or by the fields of a class.
    first = module.FAULT_TOLERANCE_BACKENDS[0]
    if dataclasses.is_dataclass(first):
        made = module._make_fault_tolerance_test_class(type(first)("kolo", "cpu"))
    else:
        made = module._make_fault_tolerance_test_class("kolo", "cpu")
    # By fork, because a fork has everything imported already.
    fork = torch.multiprocessing.get_context("fork").Process
    made._spawn_processes = lambda self: self._start_processes(fork)
    common.TIMEOUT_DEFAULT = TEST_SECONDS
    loader, suite = unittest.TestLoader(), unittest.TestSuite()
    for case in (made, module.ReconfigureContractTest):
        suite.addTests(case(name) for name in loader.getTestCaseNames(case) if only in name)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun else 1


def run_backend(backend: str, ranks: int, gates: str, only: str) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/found.json"
        environment = {
            **os.environ,
            "BACKEND": backend,
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "localhost",
        }
        command = [sys.executable, __file__, "--one", out, "--gates", gates, "--only", only]
        log = Path(f"{folder}/log")
        with log.open("w") as stream:
            try:
                subprocess.run(command, env=environment, stdout=stream, stderr=stream, timeout=RUN_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                print(f"{backend}: not finished after {RUN_SECONDS} s", file=sys.stderr)
        if not Path(out).exists():
            sys.exit(f"{backend}: no test ran:\n{log.read_text()[-3000:]}")
        return json.loads(Path(out).read_text())


def compare(ranks: int, gates: str, only: str, backends: list[str], lazy: bool) -> tuple[dict, list[str]]:
    """Runs the backends in turn and prints a row for each. Returns all outcomes, and which tests failed on Kolo alone."""
    found, texts, worse = {}, [], []
    for backend in sorted(backends, key=lambda backend: lazy and backend != "kolo"):
        if lazy and "kolo" in found and all(outcome in GOOD for outcome, _ in found["kolo"].values()):
            print(f"{backend} was not asked: no test failed on Kolo", flush=True)
            continue
        began = time.monotonic()
        found[backend] = tests = run_backend(backend, ranks, gates, only)
        seconds = time.monotonic() - began
        counts = [sum(outcome == kind for outcome, _ in tests.values()) for kind in OUTCOMES]
        print(f"| {backend} | {ranks} | {gates} | {' | '.join(map(str, counts))} | {seconds:.0f} |", flush=True)
    reference = found.get("gloo", {})
    for backend, tests in found.items():
        for name, (outcome, text) in tests.items():
            if outcome in GOOD:
                continue
            theirs = reference.get(name, [NOT_RUN])[0]
            reason = next((line for line in reversed(text.splitlines()) if _ERROR.match(line)), "")
            texts.append(f"{backend}, {ranks} ranks: {name} {outcome} (gloo: {theirs}): {reason[:300]}")
            if backend == "kolo" and theirs in GOOD:
                worse.append(name)
    unfinished = [backend for backend, tests in found.items() if any(outcome == NOT_RUN for outcome, _ in tests.values())]
    worse += [f"{backend}: not finished" for backend in unfinished]
    print("\n".join(texts))
    return found, worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="3,4")
    parser.add_argument("--backends", default="gloo,kolo")
    parser.add_argument("--lazy", action="store_true", help="ask the others only if a test fails on Kolo")
    parser.add_argument("--gates", choices=["shipped", "open", "data"], default="open")
    parser.add_argument("--only", default="", help="tests with this in their name")
    parser.add_argument("--out", help="a JSON file for what became of each test")
    parser.add_argument("--file", help="PyTorch's test_c10d_fault_tolerance.py, to run in place of the suite")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.file:
        return run_file(given.file, given.only)
    if given.one:
        run_one(given.gates, given.only, given.one)
        return 0
    everything, worse = {}, []
    print(f"| backend | ranks | gates | {' | '.join(OUTCOMES)} | seconds |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for ranks in map(int, given.ranks.split(",")):
        everything[ranks], more = compare(ranks, given.gates, given.only, given.backends.split(","), given.lazy)
        worse += more
    if given.out:
        Path(given.out).write_text(json.dumps(everything, indent=1))
    if worse:
        print(f"worse than Gloo: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
