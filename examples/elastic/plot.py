"""Plots the throughput of a run over time, with the faults injected into it. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from crew import Outcome  # noqa: E402

WINDOW_SECONDS = 0.25
COLOURS = {"kill": "#b3362b", "stop": "#c28e2c", "pause": "#5b7fa6", "add": "#444444"}
WORDS = {"kill": "killed", "stop": "stopped", "pause": "paused", "add": "added"}
STYLE = Path(__file__).resolve().parents[1] / "kolo.mplstyle"


def draw(run: Outcome, reference: Outcome, path: Path) -> None:
    """Draws steps per second, and the number of ranks below."""
    begin = run.steps[0][1]
    times = [time - begin for _, time, _ in run.steps]
    with plt.style.context(STYLE):
        figure, (upper, lower) = plt.subplots(
            2, 1, sharex=True, figsize=(7.2, 3.9), height_ratios=[3, 1], layout="constrained"
        )
        ends, rates = throughput(times)
        upper.fill_between(ends, rates, step="pre", color="#2f7d4f", alpha=0.25, linewidth=0)
        upper.step(ends, rates, where="pre", color="#2f7d4f", linewidth=1.2)
        upper.set_ylabel("steps per second")
        upper.set_ylim(0, max(rates) * 1.3)
        upper.set_title(title(run, reference), loc="left")
        lower.step(times, [ranks for *_, ranks in run.steps], where="post", color="#444444")
        most = max(ranks for *_, ranks in run.steps)
        lower.set_ylim(0, most + 0.8)
        lower.set_yticks(range(0, most + 1, 2))
        lower.set_ylabel("ranks")
        lower.set_xlabel("seconds")
        for number, event in enumerate(event for event in run.events if event.time is not None):
            at, colour = event.time - begin, COLOURS[event.what]
            for panel in (upper, lower):
                panel.axvline(at, color=colour, linewidth=1, linestyle="--")
            height = max(rates) * (1.25 - 0.09 * (number % 3))
            upper.annotate(f"{event.rank} {WORDS[event.what]}", (at, height), (3, 0), textcoords="offset points", color=colour, va="top")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def throughput(times: list[float]) -> tuple[list[float], list[float]]:
    """Returns the ends of windows, and the steps per second in each."""
    ends, rates, at = [0.0], [0.0], 0
    while ends[-1] < times[-1]:
        end, done = ends[-1] + WINDOW_SECONDS, 0
        while at < len(times) and times[at] <= end:
            at, done = at + 1, done + 1
        ends.append(end)
        rates.append(done / WINDOW_SECONDS)
    rates[0] = rates[1]
    return ends, rates


def title(run: Outcome, reference: Outcome) -> str:
    same = run.hashes == reference.hashes
    bits = f"the bits of {reference.ranks} undisturbed rank{'s' * (reference.ranks > 1)}" if same else "OTHER BITS"
    return f"{run.model}, {run.ranks} ranks at first: ends with {bits}"
