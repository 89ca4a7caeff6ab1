#!/usr/bin/env python3
"""Trains while ranks are killed, stopped and added, and shows that the weights end with the bits of an undisturbed run.

    python disturb.py                                    # 6 ranks, a schedule with all kinds of faults; --out results
    python disturb.py --ranks 8 --model cnn --events 20:kill:first,60:stop:3
    python disturb.py --table --models mlp,cnn,rnn       # hashes for 1, 2, 3, 4, 5, 6 and 8 ranks, with and without kills

An event is STEP:WHAT:WHO[:SECONDS]. WHAT is `kill` (SIGKILL), `stop` (SIGSTOP; the others go on without the rank after
about a second, and after SECONDS, 4 by default, it continues and learns that it is out) or `pause` (the same for less
than a second, for which no rank is left out). WHO is the number with which a process was started, or `first` for the
process that is rank 0 at that time. STEP:add starts one more process, which joins the running ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

# Before torch is imported: each rank computes with one thread.
os.environ["OMP_NUM_THREADS"] = "1"

from crew import Crew, Event, Outcome  # noqa: E402

EVENTS = "40:kill:first,80:pause:3:0.5,110:add,140:stop:4:4,180:add,200:kill:first,240:add"
KILLS = "5:kill:first,9:kill:first"
SIZES = (1, 2, 3, 4, 5, 6, 8)


def main() -> int:
    given = options()
    if given.table:
        return table(given)
    disturbed = run(given, given.ranks, given.events)
    reference = run(given, given.reference, "")
    print(f"{given.ranks} ranks, disturbed: {disturbed.story()}")
    print(f"{given.reference} ranks, undisturbed: {reference.story()}")
    same = disturbed.hashes == reference.hashes and len(reference.hashes) == 1
    print("the weights have the same bits" if same else "THE WEIGHTS DIFFER")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "run.json").write_text(json.dumps(disturbed.as_json()) + "\n")
        try:
            from plot import draw
        except ImportError as error:
            print(f"no plot: {error}")
        else:
            draw(disturbed, reference, given.out / "throughput.svg")
    return 0 if same else 1


def table(given: argparse.Namespace) -> int:
    """Prints for each model and number of ranks the hash, with and without kills."""
    print("| model | ranks | killed | hash |\n| --- | ---: | ---: | --- |")
    worst = 0
    for model in given.models.split(","):
        given.model, seen = model, set()
        for ranks in SIZES:
            for events in ("", KILLS) if ranks > 2 else ("",):
                outcome = run(given, ranks, events)
                seen |= outcome.hashes
                killed = sum(event.what == "kill" for event in outcome.events)
                print(f"| {model} | {ranks} | {killed} | {' '.join(sorted(each[:16] for each in outcome.hashes))} |", flush=True)
        worst = max(worst, len(seen))
    print("all the same" if worst == 1 else "THEY DIFFER")
    return 0 if worst == 1 else 1


def run(given: argparse.Namespace, ranks: int, events: str) -> Outcome:
    schedule = [Event.parse(text) for text in filter(None, events.split(","))]
    with tempfile.TemporaryDirectory(prefix="kolo-elastic-") as folder:
        crew = Crew(Path(folder), ranks, given.model, given.steps, given.data)
        with crew:
            return crew.follow(schedule, given.limit)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=6)
    parser.add_argument("--reference", type=int, default=1, help="ranks of the undisturbed run")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--models", default="mlp,cnn,rnn", help="of the table")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--events", default=EVENTS)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    parser.add_argument("--limit", type=float, default=600, help="seconds for a run")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for the plot and what it shows")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
