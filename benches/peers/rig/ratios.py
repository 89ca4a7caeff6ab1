"""Ratios from samples: the best peer's time over Kolo's, so that more than 1 means that Kolo is faster."""
import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from . import placement

# Bytes on the wire over bytes of the operation, as nccl-tests counts them.
WHOLE, PART = ("broadcast",), ("reduce_scatter", "all_gather", "all_to_all")
# Share of the machine used by others above which a point is left out, if there is a better one.
DISTURBED = 0.10


def bus_factor(collective, ranks):
    if collective in WHOLE:
        return 1.0
    return (ranks - 1) / ranks * (1 if collective in PART else 2)


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


@dataclass
class Point:
    """One collective, transport, number of ranks and size, with every library's time in microseconds."""

    transport: str
    ranks: int
    collective: str
    bytes: int
    times: dict  # library -> median over the rounds
    processors: dict  # library -> processor time of all ranks for one operation, median over the rounds
    best: str = ""
    ratio: float = float("nan")
    low: float = float("nan")  # least and greatest ratio of a round
    high: float = float("nan")
    disturbed: bool = False
    alike: bool = True  # whether the processors had the same placement for all libraries

    @property
    def kolo(self):
        return self.times.get("kolo")

    def bandwidth(self, library):
        """Returns the bus bandwidth in GB/s."""
        return self.bytes * bus_factor(self.collective, self.ranks) / self.times[library] / 1e3

    def processor_seconds(self, library):
        """Returns the processor seconds of all ranks together, for each GB (10^9 bytes) of the operation."""
        return self.processors[library] / self.bytes * 1e3

    @property
    def thriftiest(self):
        """Returns the peer that uses the least processor time, which need not be the fastest one."""
        return min((library for library in self.processors if library != "kolo"), key=self.processors.get, default=None)

    @property
    def thrift(self):
        """Returns that peer's processor time over Kolo's; NaN if one of them is unknown."""
        if self.thriftiest is None or not self.processors.get("kolo"):
            return float("nan")
        return self.processors[self.thriftiest] / self.processors["kolo"]


def complete(records):
    """Returns the points of completed turns: in others, not every library was measured."""
    turns = {(turn["round"], turn["transport"], turn["ranks"], collective)
             for turn in records if turn["kind"] == "turn" for collective in turn["collectives"]}
    return [record for record in records if record["kind"] == "point"
            and (record["round"], record["transport"], record["ranks"], record["collective"]) in turns]


def points(records):
    """Returns all measured points, in the order of the records."""
    edge = placement.border(records)
    grouped = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record["kind"] == "point":
            key = record["transport"], record["ranks"], record["collective"], record["bytes"]
            grouped[key][record["library"]][record["round"]] = record
    return [point(key, *placement.choose(libraries, edge)) for key, libraries in grouped.items()]


def point(key, libraries, alike):
    kept = {library: calm(rounds) for library, rounds in libraries.items()}
    found = Point(*key, {library: median(r["median_us"] for r in rounds) for library, rounds in kept.items()},
                  {library: median(r["cpu_us"] for r in rounds) for library, rounds in kept.items()
                   if all("cpu_us" in r for r in rounds)})
    found.alike = alike
    found.disturbed = any(r["foreign"] > DISTURBED for rounds in kept.values() for r in rounds)
    peers = [library for library in kept if library != "kolo"]
    if not peers or "kolo" not in kept:
        return found
    found.best = min(peers, key=lambda library: found.times[library])
    found.ratio = found.times[found.best] / found.kolo
    # Each round is compared with the peer that was best in it, which gives the wider spread.
    by_round = []
    for number, own in libraries["kolo"].items():
        theirs = [libraries[peer][number]["median_us"] for peer in peers if number in libraries[peer]]
        if theirs:
            by_round.append(min(theirs) / own["median_us"])
    if by_round:
        found.low, found.high = min(by_round), max(by_round)
    return found


def calm(rounds):
    """Returns the undisturbed rounds, or all rounds if there are none."""
    every = list(rounds.values())
    return [record for record in every if record["foreign"] <= DISTURBED] or every


def means(all_points, *names):
    """Returns the geometric means of the ratios, grouped by the named attributes."""
    groups = defaultdict(list)
    for found in all_points:
        if not math.isnan(found.ratio):
            groups[tuple(getattr(found, name) for name in names)].append(found.ratio)
    return {key: (geometric_mean(values), len(values), sum(value < 1 for value in values))
            for key, values in groups.items()}
