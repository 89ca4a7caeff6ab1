"""Placement of the processors by the host of a virtual machine: near each other, or far apart.

The host moves processors at any time, for seconds or minutes, and communication between them then takes up to three
times as long. While a program runs, `flag_distance` therefore records several times a second how long a bare flag takes
from one processor to the other; each point keeps the records made while it was measured, and libraries are compared by
points of one kind.
"""
import bisect
import subprocess
from collections import Counter, defaultdict

# Flags whose times differ by less than this factor are of one kind.
APART = 1.5
# Share of the records that is ignored as noise.
RARE = 0.02
KINDS = ("near", "far")
# Interval between two records.
EVERY_MS = 100


class Probe:
    SECONDS = 10

    def __init__(self, program, prefix):
        self.program = program
        self.command = [*prefix, str(program)]
        # The reason why placement is unknown, for the page; without paths of this machine.
        self.problem = None if program.exists() else f"{program.name} is not built"

    def nanoseconds(self):
        """Returns the one-way time of a flag. If it is unknown, returns None; `problem` then has the reason, and it is
        not tried again."""
        if self.problem:
            return None
        try:
            told = subprocess.run(self.command, capture_output=True, text=True, timeout=self.SECONDS)
        except subprocess.TimeoutExpired:
            self.problem = f"flag_distance takes more than {self.SECONDS} s"
            return None
        except OSError as error:
            self.problem = f"flag_distance cannot be started: {error.strerror}"
            return None
        try:
            return float(told.stdout)
        except ValueError:
            words = (told.stderr.strip() or told.stdout.strip() or "it says nothing").splitlines()[-1]
            words = words.replace(str(self.program), self.program.name)
            self.problem = f"flag_distance ends with status {told.returncode}: {words}"
            return None

    def watch(self):
        """Starts to record; None if the time is unknown."""
        return None if self.nanoseconds() is None else Watch([*self.command, "--every", str(EVERY_MS)])


class Watch:
    """Records the time of a flag while a program runs."""

    def __init__(self, command):
        # A record has 20 bytes; the pipe holds those of five minutes.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self):
        """Ends the recording; returns the records: seconds of the monotonic clock, nanoseconds."""
        self.process.kill()
        lines = self.process.communicate()[0].splitlines(keepends=True)
        return [tuple(map(float, line.split())) for line in lines if line.endswith("\n")]


def mark(points, notes, problem):
    """Adds the least and greatest record to each point, from the last one before it was measured to the first one
    after."""
    times = [at for at, _ in notes]
    for point in points:
        if notes:
            first = max(bisect.bisect_right(times, point["from_s"]) - 1, 0)
            last = bisect.bisect_left(times, point["to_s"]) + 1
            flags = [flag for _, flag in notes[first:last]] or [notes[-1][1]]
            point["flag_ns"] = [min(flags), max(flags)]
        elif problem:
            point["flag_problem"] = problem


def border(points):
    """Returns the limit between near and far; None if there is only one kind, or no record."""
    noted = sorted(flag for point in points for flag in point.get("flag_ns", []))
    if not noted:
        return None
    # A record or two may have been delayed.
    least, most = noted[int(RARE * len(noted))], noted[int((1 - RARE) * len(noted))]
    return (least * most) ** 0.5 if most >= APART * least else None


def kind(point, edge):
    """Returns near, far, or moved (both); None if that is unknown or there is no difference."""
    if edge is None or "flag_ns" not in point:
        return None
    least, most = point["flag_ns"]
    return "near" if most < edge else "far" if least > edge else "moved"


def choose(libraries, edge):
    """Returns the points to compare, chosen from those of every library by round, and whether all are of one kind: the
    kind of which most libraries have a point, Kolo first. A library without such a point is compared by the points that
    it has."""
    if edge is None:
        return libraries, True
    having = {one: {name: {number: record for number, record in rounds.items() if kind(record, edge) == one}
                    for name, rounds in libraries.items()} for one in KINDS}

    def worth(one):
        found = having[one]
        return bool(found.get("kolo")), sum(map(bool, found.values())), sum(map(len, found.values()))

    best = max(KINDS, key=worth)
    kept = {name: having[best][name] or rounds for name, rounds in libraries.items()}
    return kept, all(having[best].values())


def lacking(points):
    """Returns what would have to run again, and with which placement, for all libraries to have a point of one kind:
    (library, transport, ranks, kind) -> the (collective, bytes)."""
    edge = border(points)
    grouped = defaultdict(lambda: defaultdict(set))
    for point in points:
        where = point["transport"], point["ranks"], point["collective"], point["bytes"]
        grouped[where][point["library"]].add(kind(point, edge))
    wanted = defaultdict(set)
    for (transport, ranks, collective, size), kinds in grouped.items() if edge else ():
        best = max(KINDS, key=lambda one: sum(one in has for has in kinds.values()))
        for library, has in kinds.items():
            if best not in has and None not in has:
                wanted[library, transport, ranks, best].add((collective, size))
    return wanted


def told(points):
    """Returns the page's text on placement; empty if there is nothing to report."""
    return " ".join(text for text in (moves(points), unknown(points)) if text)


def moves(points):
    edge = border(points)
    counts = Counter(kind(point, edge) for point in points)
    if edge is None:
        return ""
    return (f"The host moved the processors: they were near each other during {counts['near']} measurements, far apart "
            f"during {counts['far']}, and moved during {counts['moved']}. Libraries are compared at times with the same placement; "
            "if one has no such time, the ratio has a `*`.")


def unknown(points):
    """Reports measurements that are compared although their kind is unknown."""
    blind = [point for point in points if "flag_ns" not in point]
    if not blind:
        return ""
    reasons = ", ".join(dict.fromkeys(point.get("flag_problem", "not noted") for point in blind))
    many = f"all {len(points)}" if len(blind) == len(points) else f"{len(blind)} of {len(points)}"
    return (f"**How far apart the processors were is not known of {many} measurements** ({reasons}): should the host have moved "
            "them, libraries that ran near and far are compared there as if nothing had happened.")
