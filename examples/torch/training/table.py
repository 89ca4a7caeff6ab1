"""The Markdown report."""

from __future__ import annotations

import os
import platform

import torch

from .job import Result
from .loop import EARLY_STEPS
from .summary import Comparison, Row


def markdown(command: str, results: list[Result], rows: list[Row], compared: list[Comparison]) -> str:
    first = results[0]
    rounds = 1 + max(result.job.round for result in results)
    lines = [
        "# Results",
        "",
        f"`{command}`",
        "",
        f"{first.source}: {first.images:,} images, {_count(first.job.epochs, 'epoch')} of {first.steps} steps, "
        f"{first.job.batch} images per step over all ranks, {_count(rounds, 'round')}. {_machine()}. "
        "Each rank has one thread.",
        "",
        *_figures(rows),
        "",
        "Times are medians over all epochs. Speed-up is over the sequential run with one thread, efficiency is "
        "speed-up per rank or thread. Communication is the part of an epoch that a rank spends waiting for gradients: "
        "`flat` is one blocking all-reduce of all gradients after the backward pass; `ddp` is "
        "DistributedDataParallel, and counts what the backward pass does not hide. Waiting for slower ranks, and for a "
        "turn on the processor, is in both.",
    ]
    if compared:
        lines += [
            "",
            "The final weights are the same bits on all ranks of each run (asserted). The largest difference of a "
            f"weight between runs, after {EARLY_STEPS} steps and at the end: sums in another order are rounded "
            "differently, and training makes more of it with every step. Two threads beside one are the yardstick.",
            "",
        ]
        lines += _differences(compared)
    return "\n".join(lines) + "\n"


def _machine() -> str:
    return f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, PyTorch {torch.__version__}"


def _figures(rows: list[Row]) -> list[str]:
    lines = [
        "| model | run | epoch (s) | fastest (s) | images/s | speed-up | efficiency | communication | loss | accuracy |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    shown = ""
    for row in rows:
        model = "" if row.job.model == shown else f"{row.job.model}, {row.parameters:,}"
        shown = row.job.model
        speedup = "" if row.speedup is None else f"{row.speedup:.2f}"
        efficiency = "" if row.efficiency is None else f"{row.efficiency:.0%}"
        share = "" if row.job.backend == "none" else f"{row.share:.1%}"
        lines.append(
            f"| {model} | {row.job.label} | {row.epoch_seconds:.2f} | {row.fastest_seconds:.2f} "
            f"| {row.images_per_second:,.0f} | {speedup} | {efficiency} | {share} | {row.loss:.4f} | {row.accuracy:.2%} |"
        )
    return lines


def _differences(compared: list[Comparison]) -> list[str]:
    """Returns one row per run, one column per kind of run compared. If Kolo ran, only its rows and the yardstick's."""
    if any(item.label.startswith("kolo") for item in compared):
        compared = [item for item in compared if item.label.startswith(("kolo", "sequential"))]
    cells: dict[tuple[str, str], dict[str, Comparison]] = {}
    for item in compared:
        kind = item.reference.split()[0].rstrip(",")
        cells.setdefault((item.model, item.label), {})[kind] = item
    kinds = list(dict.fromkeys(kind for row in cells.values() for kind in row))
    header = " | ".join(f"beside {kind}" for kind in kinds)
    lines = [f"| model | run | {header} | largest weight |", f"| --- | --- | {'---: | ' * len(kinds)}---: |"]
    for (model, label), row in cells.items():
        distances = " | ".join(_distances(row[kind]) if kind in row else "" for kind in kinds)
        largest = max(item.largest_weight for item in row.values())
        lines.append(f"| {model} | {label} | {distances} | {largest:.2f} |")
    return lines


def _distances(item: Comparison) -> str:
    return "; ".join(f"{distance:.0e}" if distance else "0" for distance in (item.early, item.final))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
