"""Where the host of a virtual machine has put the processors: near each other, or far apart.

It moves them when it likes, for minutes, and what goes between them then takes up to three times as long. So each turn, in
which all libraries run one after another, notes what a bare flag takes from one processor to the other before, between and
after its programs, and a library is compared with another only in turns of one kind.
"""
import subprocess
from collections import Counter, defaultdict

# Flags closer to each other than this are of one kind.
APART = 1.5


class Probe:
    def __init__(self, program, prefix):
        self.command = [*prefix, str(program)]
        self.works = program.exists()

    def nanoseconds(self):
        """One way of a flag, or None where that cannot be told."""
        if not self.works:
            return None
        try:
            told = subprocess.run(self.command, capture_output=True, text=True, timeout=10)
            return float(told.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self.works = False
            return None


def kinds(turns):
    """Of each turn: near, far, moved (both), or None where it was not noted or there is one kind only."""
    noted = [flag for turn in turns for flag in turn.get("flag_ns", [])]
    if not noted or max(noted) < APART * min(noted):
        return [None] * len(turns)
    border = (min(noted) * max(noted)) ** 0.5
    return [kind([flag > border for flag in turn.get("flag_ns", [])]) for turn in turns]


def kind(are_far):
    if not are_far:
        return None
    return "far" if all(are_far) else "moved" if any(are_far) else "near"


def comparable(turns):
    """The turns whose points may be compared: for each combination those of the kind that it has most of. Turns during
    which the processors were moved only where there is nothing else."""
    by_combination = defaultdict(list)
    for turn, its_kind in zip(turns, kinds(turns)):
        for collective in turn["collectives"]:
            by_combination[turn["transport"], turn["ranks"], collective].append((turn["round"], its_kind))
    kept = set()
    for combination, found in by_combination.items():
        counts = Counter(its_kind for _, its_kind in found if its_kind != "moved") or Counter(["moved"])
        most = counts.most_common(1)[0][0]
        kept |= {(number, *combination) for number, its_kind in found if its_kind == most}
    return kept


def told(turns):
    """What the page says of it; nothing where there is nothing to tell."""
    counts = Counter(kinds(turns))
    if not counts.keys() - {None}:
        return ""
    return (f"The host moved the processors about: they were near each other in {counts['near']} turns, far apart in "
            f"{counts['far']}, and moved during {counts['moved']}. Turns of different kinds are not compared.")
