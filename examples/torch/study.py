"""Sequential against data-parallel training, with Gloo, MPI and Kolo, on real images.

Trains three models (MLP, CNN, RNN) with one and two threads, then with 2 and 4 ranks over each backend, in turn, and
writes results.json, a table (results.md) and plots. Every run starts from the same weights and takes the same batches.

    python study.py                                    all of it
    python study.py --fraction 0.05 --epochs 1         a quick pass
    python study.py --backends gloo,kolo --ranks 2     part of it
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from training import data, models
from training.backends import BACKENDS, why_not
from training.job import Job, Result
from training.launch import RunFailed, Weights, launch
from training.summary import comparisons, rows
from training.table import markdown


def parse() -> argparse.Namespace:
    def names(allowed: tuple[str, ...]):
        def split(text: str) -> list[str]:
            chosen = text.split(",")
            for name in chosen:
                if name not in allowed:
                    raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(allowed)}")
            return chosen

        return split

    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")] if text else []

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="four idx files, such as MNIST's, plain or .gz")
    parser.add_argument("--models", type=names(tuple(models.MODELS)), default=list(models.MODELS),
                        help="default: mlp,cnn,rnn")
    parser.add_argument("--backends", type=names(BACKENDS), default=list(BACKENDS), help="default: gloo,mpi,kolo")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="default: 2,4")
    parser.add_argument("--threads", type=numbers, default=[1, 2],
                        help="of the sequential runs; default: 1,2; '' for none")
    parser.add_argument("--sync", type=names(("ddp", "flat")), default=["ddp", "flat"],
                        help="how Gloo and Kolo average gradients; MPI is always flat; default: ddp,flat")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128, help="images per step, all ranks together")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the images")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is repeated, in turn")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one run")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder; default: results")
    arguments = parser.parse_args()  # fmt: skip
    for ranks in arguments.ranks:
        if ranks < 1 or arguments.batch % ranks:
            parser.error(f"a batch of {arguments.batch} cannot be shared equally by {ranks} ranks")
    return arguments


def plan(arguments: argparse.Namespace) -> list[Job]:
    """Returns all runs in order: within a round and a model, the backends take turns."""
    jobs: list[Job] = []

    def add(model: str, backend: str, ranks: int, threads: int, sync: str, round_: int) -> None:
        jobs.append(
            Job(
                model=model, backend=backend, ranks=ranks, threads=threads, sync=sync, epochs=arguments.epochs,
                batch=arguments.batch, fraction=arguments.fraction, learning_rate=arguments.learning_rate,
                seed=arguments.seed, data=str(Path(arguments.data).resolve()) if arguments.data else None, round=round_,
            )  # fmt: skip
        )

    for round_ in range(arguments.rounds):
        for model in arguments.models:
            for threads in arguments.threads:
                add(model, "none", 1, threads, "none", round_)
            for ranks in arguments.ranks:
                for sync in arguments.sync:
                    for backend in arguments.backends:
                        if backend != "mpi":
                            add(model, backend, ranks, 1, sync, round_)
                if "mpi" in arguments.backends:
                    add(model, "mpi", ranks, 1, "flat", round_)
    return jobs


def write(
    arguments: argparse.Namespace, results: list[Result], weights: dict[tuple[str, str], tuple[Job, Weights]]
) -> None:
    """Writes all results so far, so that an interrupted run leaves what it has."""
    table = rows(results)
    compared = comparisons(weights)
    report = markdown(shlex.join(["python", *sys.argv]), results, table, compared)
    content = {"results": [asdict(result) for result in results], "comparisons": [asdict(item) for item in compared]}
    (arguments.out / "results.json").write_text(json.dumps(content, indent=1))
    (arguments.out / "results.md").write_text(report)


def draw(arguments: argparse.Namespace, results: list[Result]) -> None:
    try:
        from training.plots import draw as draw_plots
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
        return
    for path in draw_plots(rows(results), arguments.out):
        print(path)


def main() -> None:
    arguments = parse()
    for backend in arguments.backends:
        if reason := why_not(backend):
            raise SystemExit(f"{reason}; choose others with --backends")
    dataset = data.load(Path(arguments.data) if arguments.data else None, arguments.fraction)
    print(f"Data: {dataset.source}: {len(dataset.train):,} images, and {len(dataset.test):,} to test with")
    for model in arguments.models:
        print(f"{model}: {models.parameter_count(models.build(model, arguments.seed)):,} parameters")
    sys.stdout.flush()
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = plan(arguments)
    results: list[Result] = []
    weights: dict[tuple[str, str], tuple[Job, Weights]] = {}
    for number, job in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}]", end=" ", file=sys.stderr, flush=True)
        try:
            result, final = launch(job, arguments.timeout)
        except RunFailed as error:
            raise SystemExit(f"\n{error}") from None
        results.append(result)
        weights.setdefault((job.model, job.label), (job, final))
        write(arguments, results, weights)
    print((arguments.out / "results.md").read_text())
    draw(arguments, results)


if __name__ == "__main__":
    main()
