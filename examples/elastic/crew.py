"""The processes of a run, the faults injected into them, and the outcome."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import train

POLL_SECONDS = 0.002
STOPPED_SECONDS = 4.0


@dataclass
class Event:
    """A fault for a process, due once the job has made `step` steps."""

    step: int
    what: str
    who: str
    seconds: float = STOPPED_SECONDS
    #: Time of the fault and its process; none if no process was left for it.
    time: float | None = None
    rank: int | None = None

    @classmethod
    def parse(cls, text: str) -> Event:
        step, what, *more = text.split(":")
        if what not in ("kill", "stop", "pause", "add"):
            sys.exit(f"'{text}': a process can be killed, stopped, paused or added")
        if what == "add":
            return cls(int(step), what, "")
        return cls(int(step), what, more[0], *map(float, more[1:]))


@dataclass
class Outcome:
    """Outcome of a run."""

    ranks: int
    model: str
    events: list[Event]
    #: For each step: its end on the first rank that completed it, and the number of ranks.
    steps: list[tuple[int, float, int]] = field(default_factory=list)
    hashes: set[str] = field(default_factory=set)
    statuses: list[int] = field(default_factory=list)

    def story(self) -> str:
        done = [event for event in self.events if event.rank is not None]
        told = ", ".join(f"step {event.step} {event.what} {event.rank}" for event in done) or "nothing happened"
        left = self.statuses.count(0)
        return f"{told}; {left} of {len(self.statuses)} processes finished, weights {' '.join(sorted(each[:16] for each in self.hashes))}"

    def as_json(self) -> dict:
        return {**asdict(self), "hashes": sorted(self.hashes)}


class Crew:
    """Starts the ranks as plain processes, without a launcher that could die, and ends those that remain."""

    def __init__(self, folder: Path, ranks: int, model: str, steps: int, data: Path) -> None:
        self._folder = folder
        self._ranks = ranks
        self._model = model
        self._last = steps
        self._options = ["--out", str(folder), "--model", model, "--steps", str(steps), "--data", str(data)]
        self._processes: list[multiprocessing.Process] = []
        self._logs: dict[int, Log] = {}
        for _ in range(ranks):
            self._start("--ranks", str(ranks), "--meet", f"file://{folder}/meet")
        self._continue_at: list[tuple[float, int]] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def _start(self, *options: str) -> int:
        """Starts one more process and returns its number. It forks, since importing torch takes longer than a small
        run."""
        rank = len(self._processes)
        arguments = ["--rank", str(rank), *options, *self._options]
        process = multiprocessing.get_context("fork").Process(target=be_rank, args=(arguments, self._folder / f"errors-{rank}"))
        process.start()
        self._processes.append(process)
        self._logs[rank] = Log(self._folder / f"steps-{rank}.jsonl")
        return rank

    def follow(self, schedule: list[Event], limit: float) -> Outcome:
        """Injects the faults of the schedule, until all ranks have ended."""
        waiting = sorted(schedule, key=lambda event: event.step)
        deadline = time.monotonic() + limit
        while any(process.is_alive() for process in self._processes):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not finished after {limit:.0f} s\n{self._errors()}")
            while waiting and self._step() >= waiting[0].step:
                self._do(waiting.pop(0))
            self._let_go_on()
            time.sleep(POLL_SECONDS)
        return self._outcome(schedule)

    def _step(self) -> int:
        return max((told["step"] for log in self._logs.values() for told in log.read()[-1:]), default=0)

    def _do(self, event: Event) -> None:
        if event.what == "add":
            event.time, event.rank = time.time(), self._start("--join")
            return
        running = [rank for rank, process in enumerate(self._processes) if process.is_alive()]
        stopped = [rank for _, rank in self._continue_at]
        there = [rank for rank in running if rank not in stopped]
        rank = self._first(there) if event.who == "first" else int(event.who)
        if rank not in there:
            return
        event.time, event.rank = time.time(), rank
        process = self._processes[rank]
        if event.what == "kill":
            process.kill()
            process.join()
        else:
            os.kill(process.pid, signal.SIGSTOP)
            self._continue_at.append((time.monotonic() + event.seconds, rank))

    def _first(self, there: list[int]) -> int | None:
        """Returns the process among `there` that was rank 0 in the latest step."""
        latest = {rank: log.read()[-1] for rank, log in self._logs.items() if rank in there and log.read()}
        zeros = [rank for rank, told in latest.items() if told["rank"] == 0]
        return max(zeros, key=lambda rank: latest[rank]["step"], default=min(there, default=None))

    def _let_go_on(self) -> None:
        now = time.monotonic()
        for at, rank in [entry for entry in self._continue_at if entry[0] <= now]:
            self._continue_at.remove((at, rank))
            if self._processes[rank].is_alive():
                os.kill(self._processes[rank].pid, signal.SIGCONT)

    def _outcome(self, schedule: list[Event]) -> Outcome:
        outcome = Outcome(self._ranks, self._model, schedule)
        outcome.statuses = [process.exitcode for process in self._processes]
        outcome.hashes = {path.read_text() for path in self._folder.glob("hash-*")}
        first: dict[int, tuple[float, int]] = {}
        for log in self._logs.values():
            for told in log.read():
                before = first.get(told["step"])
                if before is None or told["time"] < before[0]:
                    first[told["step"]] = told["time"], told["ranks"]
        outcome.steps = [(step, *first[step]) for step in sorted(first)]
        wrong = [status for status in outcome.statuses if status not in (0, train.LEFT_OUT, train.TOO_LATE, -signal.SIGKILL)]
        if wrong or len(outcome.steps) != self._last:
            raise RuntimeError(f"ranks ended with {outcome.statuses} after {len(outcome.steps)} steps\n{self._errors()}")
        return outcome

    def _errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("errors-*")))


def be_rank(arguments: list[str], output: Path) -> None:
    """Does the work of `python train.py` with these arguments, in a process of its own."""
    with output.open("w", buffering=1) as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        # A rank counts as lost after one second of silence instead of a minute.
        os.environ["KOLO_DEAD_AFTER"] = "1"
        sys.exit(train.main(arguments))


class Log:
    """The lines that a rank has written about its steps so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = None
        self._partial = ""
        self._told: list[dict] = []

    def read(self) -> list[dict]:
        if self._file is None:
            if not self._path.exists():
                return self._told
            self._file = self._path.open()
        *lines, self._partial = (self._partial + self._file.read()).split("\n")
        self._told += map(json.loads, lines)
        return self._told
