"""Real images, 28x28 and grey, in ten classes: from a folder, from Debian's package, or from this repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .idx import find_idx, read_idx

DEBIAN_PACKAGE = Path("/usr/share/datasets/fashion-mnist")
BUNDLED = Path(__file__).resolve().parents[2] / "data"
IMAGE_SIZE = 28


@dataclass(frozen=True)
class Images:
    """`pixels` are bytes of shape (images, 28, 28), `labels` whole numbers of shape (images,)."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: torch.Tensor | slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs between -1 and 1, and their labels."""
        return self.pixels[indices].float().div_(127.5).sub_(1.0), self.labels[indices]

    def fraction(self, part: float) -> "Images":
        """Returns the first part of the images."""
        count = max(1, round(len(self) * part))
        return Images(self.pixels[:count], self.labels[:count])


@dataclass(frozen=True)
class Dataset:
    """Images to train with and images to test with; `source` says where they come from."""

    source: str
    train: Images
    test: Images


def load(folder: Path | None, fraction: float = 1.0) -> Dataset:
    """Loads `folder`, or the best set that this machine has."""
    if folder is not None:
        dataset = _idx_folder(folder, f"idx files in {folder}")
    elif DEBIAN_PACKAGE.is_dir():
        dataset = _idx_folder(DEBIAN_PACKAGE, "Fashion-MNIST, from Debian's package dataset-fashion-mnist")
    elif BUNDLED.is_dir():
        dataset = _idx_folder(BUNDLED, "the part of Fashion-MNIST that comes with Kolo")
    else:
        raise SystemExit(
            "no images: give --data FOLDER with the four idx files of MNIST or Fashion-MNIST (examples/data of Kolo's "
            "repository has a small set), or install Debian's package dataset-fashion-mnist"
        )
    return Dataset(dataset.source, dataset.train.fraction(fraction), dataset.test.fraction(fraction))


def _idx_folder(folder: Path, source: str) -> Dataset:
    def images(prefix: str) -> Images:
        pixels = read_idx(find_idx(folder, f"{prefix}-images-idx3-ubyte"))
        labels = read_idx(find_idx(folder, f"{prefix}-labels-idx1-ubyte"))
        if pixels.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE) or len(pixels) != len(labels):
            raise ValueError(f"{folder}: {prefix} images {pixels.shape} do not go with labels {labels.shape}")
        return Images(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64)))

    return Dataset(source, images("train"), images("t10k"))
