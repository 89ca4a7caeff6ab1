"""The idx format of MNIST and its successors: a header of big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """Reads one idx file of bytes, plain or gzipped."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        content = file.read()
    if len(content) < 4:
        raise ValueError(f"{path}: too short for an idx file")
    zero, kind, dimensions = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != UNSIGNED_BYTE or len(content) < 4 + 4 * dimensions:
        raise ValueError(f"{path}: not an idx file of bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if data.size != int(np.prod(shape)):
        raise ValueError(f"{path}: {data.size} bytes of data, but its header says {shape}")
    return data.reshape(shape)


def find_idx(folder: Path, name: str) -> Path:
    """Returns the path of the file `name` in `folder`, plain or gzipped."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{folder} has neither {name} nor {name}.gz")
