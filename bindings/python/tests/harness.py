"""Ranks for tests: forks of the test process, or programs started from scratch.

A fork has everything imported already, so a test with four ranks takes milliseconds. Tests of how processes start and end
use :func:`programs`. Nothing listens at a fixed port: ranks meet in a file, in a folder that the test owns.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

#: Seconds after which a test counts as stuck: far more than any test takes, even on a busy machine. A program that imports torch
#: uses 4 s of processor time, and may get only a tenth of a processor.
LIMIT = 180.0


class Ended:
    """How a rank ended."""

    def __init__(self, code: int, text: str, seconds: float) -> None:
        self.code = code
        self.text = text
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s:\n{self.text}"


def forked(ranks: int, body: Callable, *arguments, limit: float = LIMIT, check: bool = True) -> list[Ended]:
    """Runs ``body(rank, ranks, folder, *arguments)`` in a fork per rank. Fails if a rank fails, unless ``check`` is false."""
    with tempfile.TemporaryDirectory() as folder:
        children = {}
        began = time.monotonic()
        for rank in range(ranks):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                _be_rank(write, body, rank, ranks, folder, arguments)
            os.close(write)
            children[rank] = (child, read)
        ended = _collect(children, began, limit)
    return _checked(ended) if check else ended


def _be_rank(write: int, body, rank: int, ranks: int, folder: str, arguments) -> None:
    code = 1
    try:
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        body(rank, ranks, folder, *arguments)
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Exit at once, so that the fork does not run pytest's own exit code.
        os._exit(code)


def _collect(children: dict, began: float, limit: float) -> list[Ended]:
    texts = {rank: b"" for rank in children}
    open_pipes = {read: rank for rank, (_, read) in children.items()}
    times = dict.fromkeys(children, 0.0)
    while open_pipes:
        left = began + limit - time.monotonic()
        ready = select.select(list(open_pipes), [], [], max(left, 0))[0]
        if not ready:
            for child, _ in children.values():
                os.kill(child, signal.SIGKILL)
            break
        for read in ready:
            data = os.read(read, 1 << 16)
            rank = open_pipes[read]
            texts[rank] += data
            if not data:
                times[rank] = time.monotonic() - began
                del open_pipes[read]
    stuck = set(open_pipes.values())
    ended = []
    for rank, (child, read) in children.items():
        _, status = os.waitpid(child, 0)
        os.close(read)
        text = texts[rank].decode(errors="replace") + (f"\n(killed after {limit} s)" if rank in stuck else "")
        ended.append(Ended(os.waitstatus_to_exitcode(status), text, times[rank] or time.monotonic() - began))
    return ended


def programs(
    commands: list[list[str]], environments: list[dict], limit: float = LIMIT, check: bool = True
) -> list[Ended]:
    """Starts programs and waits for all of them; kills them when the time limit has passed."""
    began = time.monotonic()
    started = []
    for command, environment in zip(commands, environments):
        full = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        started.append(
            subprocess.Popen(
                command, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        )
    children = {i: (process.pid, os.dup(process.stdout.fileno())) for i, process in enumerate(started)}
    for process in started:
        process.stdout.close()
    try:
        ended = _collect(children, began, limit)
    finally:
        for process in started:
            process.returncode = 0  # _collect has waited for it
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    return _checked(ended) if check else ended


def python(program: str | Path, *arguments: str) -> list[str]:
    """The command of a Python program."""
    return [sys.executable, str(program), *arguments]


def _checked(ended: list[Ended]) -> list[Ended]:
    failed = [f"--- rank {rank}: {end}" for rank, end in enumerate(ended) if end.code != 0]
    assert not failed, "\n" + "\n".join(failed)
    return ended
