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
    return " ".join(text for text in (moves(turns), unknown(turns)) if text)


def moves(turns):
    counts = Counter(kinds(turns))
    if not counts.keys() - {None}:
        return ""
    return (f"The host moved the processors about: they were near each other in {counts['near']} turns, far apart in "
            f"{counts['far']}, and moved during {counts['moved']}. Turns of different kinds are not compared.")


def unknown(turns):
    """Turns that are compared although nobody knows of what kind they are."""
    blind = [turn for turn in turns if not turn.get("flag_ns")]
    if not blind:
        return ""
    reasons = ", ".join(dict.fromkeys(turn.get("flag_problem", "not noted") for turn in blind))
    many = f"all {len(turns)}" if len(blind) == len(turns) else f"{len(blind)} of {len(turns)}"
    return (f"**How far apart the processors were is not known of {many} turns** ({reasons}): should the host have moved them, "
            "libraries that ran near and far are compared there as if nothing had happened.")
