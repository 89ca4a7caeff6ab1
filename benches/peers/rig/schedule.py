"""Order of the runs. Within a round, all libraries run one after another for each combination. After the last round,
libraries that have no time for the placement of the others run again."""
import json
import os
import time
from collections import Counter
from pathlib import Path

from . import machine, placement, processes
from .options import RENO
from .peer import oversubscribed

# After this many failures in a combination of transport and ranks, a library is not tried again there.
FAILURES = 2
# Limits on repeating a program for comparable placement, and on the wait for the host to move the processors.
AGAIN = 3
PATIENCE_SECONDS = 60
# Beside busy processes, a point is one sample that lasts this long.
BUSY_MEAN_MS = 1500


class Schedule:
    def __init__(self, options, libraries, prefix, sink, namespace=None, probe=None):
        self.options, self.libraries, self.prefix, self.sink = options, libraries, prefix, sink
        self.namespace, self.probe = namespace, probe
        self.failures, self.points = {}, []
        self.end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")

    def combinations(self):
        for transport in self.options.transports:
            for ranks in self.options.ranks:
                every = self.options.collectives
                for collectives in [every] if self.options.together else [[one] for one in every]:
                    yield transport, ranks, collectives

    def takes_part(self, library, transport, ranks):
        if underneath(transport) not in library.transports:
            return False
        if library.never_yields and oversubscribed(ranks) and not self.options.full:
            key = (library.name, transport, ranks)
            if key not in self.failures:
                self.failures[key] = FAILURES
                self.sink({"kind": "failure", "library": library.name, "transport": transport, "ranks": ranks,
                           "reason": "waits without yielding the processor, so that an operation takes tens of "
                                     "milliseconds with more ranks than processors: only measured with --full"})
        return self.failures.get((library.name, transport, ranks), 0) < FAILURES

    def run(self):
        """Runs everything. Returns the number of completed rounds."""
        for number in range(1, self.options.rounds + 1):
            started = time.monotonic()
            for index, (transport, ranks, collectives) in enumerate(self.combinations()):
                libraries = [library for library in self.libraries if self.takes_part(library, transport, ranks)]
                # No library is always the first, or always after the same one.
                first = (number + index) % max(len(libraries), 1)
                order = libraries[first:] + libraries[:first]
                order = order[::-1] if number % 2 else order
                for library in order:
                    if time.monotonic() > self.end:
                        print(f"out of time in round {number}", flush=True)
                        return number - 1
                    self.program(number, library, transport, ranks, collectives, self.options.sizes)
                # Without this record the combination does not count, since not every library had a turn.
                self.turn(number, transport, ranks, collectives)
            print(f"round {number} of {self.options.rounds}: {time.monotonic() - started:.0f} s, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
        self.again()
        return self.options.rounds

    def turn(self, number, transport, ranks, collectives, **rest):
        self.sink({"kind": "turn", "round": number, "transport": transport, "ranks": ranks, "collectives": collectives, **rest})

    def again(self):
        """Runs programs again while the placement is that of the others, until nothing is lacking, or until that
        placement has not occurred for long. Such a run is a round of its own."""
        names = {library.name: library for library in self.libraries}
        tries, number, moved = Counter(), self.options.rounds, time.monotonic()
        while self.probe and time.monotonic() < min(self.end, moved + PATIENCE_SECONDS):
            wanted = placement.lacking(self.points)
            wanted = {what: points for what, points in wanted.items() if tries[what] < AGAIN}
            if not wanted:
                return
            flag = self.probe.nanoseconds()
            now = flag and placement.kind({"flag_ns": [flag, flag]}, placement.border(self.points))
            here = [what for what in wanted if what[-1] == now]
            if not here:
                time.sleep(1)
                continue
            what = max(here, key=lambda what: len(wanted[what]))
            name, transport, ranks, _ = what
            tries[what] += 1
            number += 1
            collectives = [one for one in self.options.collectives if any(one == wants for wants, _ in wanted[what])]
            sizes = sorted({size for _, size in wanted[what] if size}) or self.options.sizes[:1]
            print(f"again: {name}, {transport}, {ranks} ranks, processors {now}: {len(wanted[what])} points", flush=True)
            self.program(number, names[name], transport, ranks, collectives, sizes)
            self.turn(number, transport, ranks, collectives, again=name)
            moved = time.monotonic()

    def program(self, number, library, transport, ranks, collectives, sizes):
        """Runs one library with one or several collectives."""
        collective = ",".join(collectives)
        launch = library.launch(ranks, underneath(transport))
        # Kolo runs with its defaults: it does not leave congestion control to the system.
        namespace = self.namespace if transport == RENO and library.name != "kolo" else None
        loopback_bytes = namespace.loopback_bytes if namespace else machine.loopback_bytes
        # A real-time process that never yields would keep its processor for a whole slice at every wait.
        hogs = library.never_yields and oversubscribed(ranks)
        prefix = [*([] if hogs else self.prefix), *(namespace.prefix if namespace else [])]
        command = [*prefix, *launch.command, "--collectives", collective, "--sizes",
                   ",".join(map(str, sizes)), "--budget-ms", str(self.options.budget_ms)]
        if self.options.busy:
            command += ["--retries", "0", "--mean-ms", str(BUSY_MEAN_MS)]
        watch = self.probe.watch() if self.probe else None
        wire, started = loopback_bytes(), time.monotonic()
        status, output, errors = processes.run(command, launch.environment, self.options.timeout, self.options.busy)
        wire = loopback_bytes() - wire
        notes = watch.end() if watch else []
        for leftover in launch.leftovers:
            Path(leftover).unlink(missing_ok=True)
        base = {"round": number, "library": library.name, "transport": transport}
        self.sink({"kind": "program", **base, "ranks": ranks, "collective": collective, "loopback_bytes": wire,
                   "seconds": round(time.monotonic() - started, 2)})
        points = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
        least = sum(least_traffic(point) for point in points)
        honest = underneath(transport) != "tcp" or wire >= least
        placement.mark(points, notes, self.probe.problem if self.probe else None)
        for point in points if honest else []:
            self.points.append({"kind": "point", **base, **point})
            self.sink(self.points[-1])
        expected = sum(1 if one == "barrier" else len(sizes) for one in collectives)
        if status != 0 or len(points) < expected or not honest:
            key = (library.name, transport, ranks)
            self.failures[key] = self.failures.get(key, 0) + 1
            why = (reason(status, errors, self.options.timeout) if honest else
                   f"only {wire} bytes went over the loopback interface instead of {least:.0f}: this was not TCP")
            self.sink({"kind": "failure", **base, "ranks": ranks, "collective": collective, "reason": why})


def underneath(transport):
    """Returns the transport that a library is told to use."""
    return "tcp" if transport == RENO else transport


def least_traffic(point):
    """Returns the bytes that the samples of a point must have sent between ranks, whatever the algorithm."""
    each = point["bytes"] * (point["ranks"] - 1) / point["ranks"]
    return each * point["batch"] * point["samples"]


def reason(status, errors, limit):
    if status is None:
        return f"not done after {limit:g} s"
    lines = [line.strip() for line in errors.splitlines() if line.strip(" -=*[]")]
    return f"exit status {status}" + (f": {' / '.join(lines[-3:])[:300]}" if lines else "")
