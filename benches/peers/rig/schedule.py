"""Who runs when: within a round, all libraries run one after another for each combination."""
import json
import os
import time

from . import processes
from .library import oversubscribed

# A library that failed this often in a combination of transport and ranks is not tried again there.
FAILURES = 2


class Schedule:
    def __init__(self, options, libraries, prefix, sink):
        self.options, self.libraries, self.prefix, self.sink = options, libraries, prefix, sink
        self.failures = {}
        self.end = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")

    def combinations(self):
        for transport in self.options.transports:
            for ranks in self.options.ranks:
                for collective in self.options.collectives:
                    yield transport, ranks, collective

    def takes_part(self, library, transport, ranks):
        if transport not in library.transports:
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
        """Runs everything. Returns how many rounds were completed."""
        for number in range(1, self.options.rounds + 1):
            started = time.monotonic()
            for index, (transport, ranks, collective) in enumerate(self.combinations()):
                libraries = [library for library in self.libraries if self.takes_part(library, transport, ranks)]
                # Nobody is always the first, or always after the same one.
                first = (number + index) % max(len(libraries), 1)
                order = libraries[first:] + libraries[:first]
                order = order[::-1] if number % 2 else order
                for library in order:
                    if time.monotonic() > self.end:
                        print(f"out of time in round {number}", flush=True)
                        return number - 1
                    self.program(number, library, transport, ranks, collective)
            print(f"round {number} of {self.options.rounds}: {time.monotonic() - started:.0f} s, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
        return self.options.rounds

    def program(self, number, library, transport, ranks, collective):
        """One library, one collective, all sizes."""
        launch = library.launch(ranks, transport)
        # A real-time process that never yields would keep its processor for a whole slice at every wait.
        hogs = library.never_yields and oversubscribed(ranks)
        command = [*([] if hogs else self.prefix), *launch.command, "--collectives", collective, "--sizes",
                   ",".join(map(str, self.options.sizes)), "--budget-ms", str(self.options.budget_ms)]
        status, output, errors = processes.run(command, launch.environment, self.options.timeout)
        base = {"round": number, "library": library.name, "transport": transport}
        points = 0
        for line in output.splitlines():
            if line.startswith("{") and line.endswith("}"):
                self.sink({"kind": "point", **base, **json.loads(line)})
                points += 1
        expected = 1 if collective == "barrier" else len(self.options.sizes)
        if status != 0 or points < expected:
            key = (library.name, transport, ranks)
            self.failures[key] = self.failures.get(key, 0) + 1
            self.sink({"kind": "failure", **base, "ranks": ranks, "collective": collective,
                       "reason": reason(status, errors, self.options.timeout)})


def reason(status, errors, limit):
    if status is None:
        return f"not done after {limit:g} s"
    lines = [line.strip() for line in errors.splitlines() if line.strip(" -=*[]")]
    return f"exit status {status}" + (f": {' / '.join(lines[-3:])[:300]}" if lines else "")
