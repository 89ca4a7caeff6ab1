"""The three models of the study. Each takes a batch of 28x28 images and gives ten scores per image."""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn

CLASSES = 10


def mlp() -> nn.Module:
    """Dense layers of 256 and 128: 235,146 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def cnn() -> nn.Module:
    """Two convolutions with pooling, two dense layers: 421,642 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


class RowReader(nn.Module):
    """An LSTM that reads an image row by row, then a dense layer: 82,186 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(input_size=28, hidden_size=128, batch_first=True)
        self.scores = nn.Linear(128, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        states, _ = self.rows(images)
        return self.scores(states[:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn, "rnn": RowReader}


def build(name: str, seed: int) -> nn.Module:
    """Returns the model `name`; equal seeds give equal weights."""
    torch.manual_seed(seed)
    return MODELS[name]()


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def flat_weights(model: nn.Module) -> torch.Tensor:
    """Returns all parameters, one after another."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
