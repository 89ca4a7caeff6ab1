"""The command line that the small programs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from .backends import BACKENDS


def parse(description: str | None, *more: tuple[str, dict]) -> argparse.Namespace:
    """Parses the shared options, and `more` as (flag, arguments of add_argument)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    backends = [name for name in BACKENDS if name != "mpi"]
    parser.add_argument("--backend", default="kolo", choices=backends, help="default: kolo")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="four idx files, such as MNIST's, plain or .gz")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the images; default: 1.0")
    parser.add_argument("--batch", type=int, default=128, help="images per step, all ranks together")
    for flag, arguments in more:
        parser.add_argument(flag, **arguments)
    return parser.parse_args()
