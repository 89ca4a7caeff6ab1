"""Where the host of a virtual machine has put the processors: near each other, or far apart.

It moves them when it likes, for seconds or minutes, and what goes between them then takes up to three times as long. So while
a program runs, `flag_distance` notes several times a second what a bare flag takes from one processor to the other, each
point keeps what was noted while it was measured, and libraries are compared by points of one kind.
"""
import bisect
import subprocess
from collections import Counter, defaultdict

# Flags closer to each other than this are of one kind.
APART = 1.5
# A share of the notes that says nothing.
RARE = 0.02
KINDS = ("near", "far")
# Between two notes.
EVERY_MS = 100


class Probe:
    SECONDS = 10

    def __init__(self, program, prefix):
        self.program = program
        self.command = [*prefix, str(program)]
        # Why it cannot be told, for the page; no paths of this machine.
        self.problem = None if program.exists() else f"{program.name} is not built"

    def nanoseconds(self):
        """One way of a flag, or None where that cannot be told; then `problem` says why, and nobody asks again."""
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
        """Notes from now on; None where it cannot be told."""
        return None if self.nanoseconds() is None else Watch([*self.command, "--every", str(EVERY_MS)])


class Watch:
    """What a flag takes, noted beside a program."""

    def __init__(self, command):
        # A note is 20 bytes; the pipe holds those of five minutes.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self):
        """All notes: seconds of the monotonic clock, nanoseconds."""
        self.process.kill()
        lines = self.process.communicate()[0].splitlines(keepends=True)
        return [tuple(map(float, line.split())) for line in lines if line.endswith("\n")]


def mark(points, notes, problem):
    """Adds to points what was noted from the last time before they were measured to the first time after: least and most."""
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
    """What tells near from far; None where there is one kind only, or nothing was noted."""
    noted = sorted(flag for point in points for flag in point.get("flag_ns", []))
    if not noted:
        return None
    # A note or two may have been held up.
    least, most = noted[int(RARE * len(noted))], noted[int((1 - RARE) * len(noted))]
    return (least * most) ** 0.5 if most >= APART * least else None


def kind(point, edge):
    """near, far, moved (both), or None where that is not known or there is no difference."""
    if edge is None or "flag_ns" not in point:
        return None
    least, most = point["flag_ns"]
    return "near" if most < edge else "far" if least > edge else "moved"


def choose(libraries, edge):
    """The points that are compared, from those of every library by round, and whether all are of one kind: of that kind
    which most libraries have a point of, Kolo first. A library without one is compared by those that it has."""
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
    """What would have to run again, and while the processors lie how, for all libraries to have a point of one kind:
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
    """What the page says of it; nothing where there is nothing to tell."""
    return " ".join(text for text in (moves(points), unknown(points)) if text)


def moves(points):
    edge = border(points)
    counts = Counter(kind(point, edge) for point in points)
    if edge is None:
        return ""
    return (f"The host moved the processors about: they were near each other during {counts['near']} measurements, far apart "
            f"during {counts['far']}, and moved during {counts['moved']}. Libraries are compared while they lay alike; "
            "where one had no such time, the ratio has a `*`.")


def unknown(points):
    """Measurements that are compared although nobody knows of what kind they are."""
    blind = [point for point in points if "flag_ns" not in point]
    if not blind:
        return ""
    reasons = ", ".join(dict.fromkeys(point.get("flag_problem", "not noted") for point in blind))
    many = f"all {len(points)}" if len(blind) == len(points) else f"{len(blind)} of {len(points)}"
    return (f"**How far apart the processors were is not known of {many} measurements** ({reasons}): should the host have moved "
            "them, libraries that ran near and far are compared there as if nothing had happened.")
