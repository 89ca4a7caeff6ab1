"""SVG plots of the rows. Needs matplotlib."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from .summary import Row  # noqa: E402

COLOURS = {"none": "#8c8c8c", "mpi": "#c28e2c", "gloo": "#5b7fa6", "kolo": "#2f7d4f"}
DASHES = {1: "-", 2: "-", 4: "--", 8: ":"}
STYLE = Path(__file__).resolve().parents[2] / "kolo.mplstyle"


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Writes all plots; returns their paths."""
    models = list(dict.fromkeys(row.job.model for row in rows))
    distributed = [row for row in rows if row.job.backend != "none"]
    with plt.style.context(STYLE):
        seconds = lambda row: row.epoch_seconds  # noqa: E731
        written = [_bars(rows, models, folder / "epoch-time.svg", "seconds per epoch", seconds, "{:.3g}")]
        if distributed:
            share = lambda row: 100 * row.share  # noqa: E731
            written.append(_bars(distributed, models, folder / "communication.svg", "% of the epoch", share, "{:.1f}"))
            if all(row.speedup is not None for row in distributed):
                written.append(_scaling(rows, models, folder / "scaling.svg"))
        written.append(_over_time(rows, models, folder / "learning.svg"))
        written.append(_trade_off(rows, models, folder / "trade-off.svg"))
    return written


def _save(figure: plt.Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _bars(rows: list[Row], models: list[str], path: Path, unit: str, value: Callable[[Row], float], text: str) -> Path:
    """Draws one panel per model, with one horizontal bar per run."""
    longest = max(sum(row.job.model == model for row in rows) for model in models)
    figure, panels = plt.subplots(
        1, len(models), squeeze=False, layout="constrained", figsize=(1.6 + 2.6 * len(models), 0.9 + 0.26 * longest)
    )
    for number, (panel, model) in enumerate(zip(panels[0], models)):
        mine = [row for row in rows if row.job.model == model]
        values = [value(row) for row in mine]
        bars = panel.barh(range(len(mine)), values, color=[COLOURS[row.job.backend] for row in mine], height=0.7)
        panel.bar_label(bars, labels=[text.format(v) for v in values], padding=2, fontsize=8)
        panel.set_yticks(range(len(mine)), [row.job.label for row in mine] if number == 0 else [])
        panel.invert_yaxis()
        panel.set_xlim(0, 1.22 * max(values))
        panel.set_xlabel(unit)
        panel.set_title(f"{model.upper()}, {mine[0].parameters:,} parameters")
    return _save(figure, path)


def _scaling(rows: list[Row], models: list[str], path: Path) -> Path:
    """Draws speed-up above and efficiency below, over the number of ranks."""
    processors = os.cpu_count() or 1
    kinds = list(dict.fromkeys((row.job.backend, row.job.sync) for row in rows if row.job.backend != "none"))
    ranks = sorted({1, *(row.job.ranks for row in rows if row.job.backend != "none")})
    figure, panels = plt.subplots(
        2, len(models), squeeze=False, sharex=True, sharey="row", layout="constrained",
        figsize=(1.2 + 2.6 * len(models), 5.2),
    )
    for column, model in enumerate(models):
        above, below = panels[0][column], panels[1][column]
        ideal = [min(count, processors) for count in ranks]
        above.plot(ranks, ideal, color="#bbbbbb", linewidth=1, label=f"ideal on {processors} processors")
        below.plot(ranks, [100 * top / count for top, count in zip(ideal, ranks)], color="#bbbbbb", linewidth=1)
        for backend, sync in kinds:
            mine = [row for row in rows if (row.job.model, row.job.backend, row.job.sync) == (model, backend, sync)]
            mine.sort(key=lambda row: row.job.ranks)
            counts = [1, *(row.job.ranks for row in mine)]
            speedups = [1.0, *(row.speedup or 0.0 for row in mine)]
            line = "-" if sync == "ddp" else "--"
            look = {"color": COLOURS[backend], "marker": "o", "markersize": 3.5, "linestyle": line}
            above.plot(counts, speedups, label=f"{backend} {sync}", **look)
            below.plot(counts, [100 * s / c for s, c in zip(speedups, counts)], **look)
        above.set_title(model.upper())
        below.set_xlabel("ranks")
        below.set_xticks(ranks)
        above.set_ylim(bottom=0)
        below.set_ylim(bottom=0)
    panels[0][0].set_ylabel("speed-up")
    panels[1][0].set_ylabel("efficiency, %")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return _save(figure, path)


def _over_time(rows: list[Row], models: list[str], path: Path) -> Path:
    """Draws loss above and accuracy below, over time. If a backend ran in both ways, only `ddp` is shown.

    Every epoch counts with the median time of the run's epochs, so that one disturbance does not shift later epochs.
    """
    overlapped = {(row.job.backend, row.job.ranks) for row in rows if row.job.sync == "ddp"}
    rows = [row for row in rows if row.job.sync != "flat" or (row.job.backend, row.job.ranks) not in overlapped]
    figure, panels = plt.subplots(
        2, len(models), figsize=(1.2 + 2.6 * len(models), 5.4), squeeze=False, sharex="col", layout="constrained"
    )
    for column, model in enumerate(models):
        above, below = panels[0][column], panels[1][column]
        for row in (row for row in rows if row.job.model == model):
            _learning(above, below, row)
        above.set_title(model.upper())
        below.set_xlabel("seconds of training (median epochs)")
    panels[0][0].set_ylabel("training loss")
    panels[1][0].set_ylabel("test accuracy, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return _save(figure, path)


def _trade_off(rows: list[Row], models: list[str], path: Path) -> Path:
    """Draws the time of an epoch against the final accuracy: a dot per run, labelled with its ranks or threads."""
    figure, panels = plt.subplots(
        1, len(models), squeeze=False, layout="constrained", figsize=(1.2 + 2.6 * len(models), 3.2)
    )
    for panel, model in zip(panels[0], models):
        for row in (row for row in rows if row.job.model == model):
            many = row.job.ranks * row.job.threads
            place = (row.epoch_seconds, 100 * row.accuracy)
            panel.plot(*place, "o", color=COLOURS[row.job.backend], markersize=4)
            panel.annotate(str(many), place, xytext=(4, 2), textcoords="offset points", fontsize=7)
        panel.set_title(model.upper())
        panel.set_xlabel("seconds per epoch")
    panels[0][0].set_ylabel("test accuracy at the end, %")
    return _save(figure, path)


def _learning(above: Axes, below: Axes, row: Row) -> None:
    seconds = [row.epoch_seconds * (number + 1) for number in range(len(row.epochs))]
    many = row.job.ranks * row.job.threads
    look = {
        "color": COLOURS[row.job.backend],
        "linestyle": DASHES.get(many, "-."),
        "marker": "o" if row.job.sync == "ddp" else "s" if row.job.sync == "flat" else ("^" if many == 1 else "v"),
        "markersize": 3.5,
        "linewidth": 1.1,
    }
    above.plot(seconds, [epoch.loss for epoch in row.epochs], label=row.job.label, **look)
    below.plot(seconds, [100 * epoch.accuracy for epoch in row.epochs], **look)
