"""User-defined operators: any associative function of two arrays, whether or not it commutes.

    kolo run -n 4 -- python operators.py
"""

import numpy as np

import kolo


def compose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiplies 2x2 matrices, one per row. The order matters, and is that of the ranks."""
    return (a.reshape(-1, 2, 2) @ b.reshape(-1, 2, 2)).reshape(a.shape)


PAIR = np.dtype([("value", "f8"), ("where", "i8")])


def least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the lesser of two values, and where it was found: MPI's MINLOC."""
    return np.where(b["value"] < a["value"], b, a)


with kolo.init() as comm:
    rank, ranks = comm.rank, comm.world_size
    # A NumPy function.
    x = comm.all_reduce(np.full(1000, 3.0), np.hypot)
    assert np.allclose(x, 3 * np.sqrt(ranks))
    # A structured type.
    pairs = np.array([((rank - 2.0) ** 2, rank), (rank, rank)], PAIR)
    comm.all_reduce(pairs, least)
    assert pairs["where"].tolist() == [min(2, ranks - 1), 0]
    # Matrices as wide elements: the array has one element per matrix.
    matrix = np.dtype((np.void, 32))

    def product(a, b):
        made = compose(a.view(np.float64), b.view(np.float64))
        return np.ascontiguousarray(made).view(matrix).reshape(a.shape)

    shears = np.array([[1.0, rank + 1.0], [0.0, 2.0]]).reshape(-1).view(matrix)
    before = comm.scan(shears.copy(), product)
    whole = comm.all_reduce(shears, product).view(np.float64).reshape(2, 2)
    expected = np.eye(2)
    for other in range(ranks):
        expected = expected @ np.array([[1.0, other + 1.0], [0.0, 2.0]])
        if other == rank:
            assert np.allclose(before.view(np.float64).reshape(2, 2), expected)
    assert np.allclose(whole, expected)
    print(f"rank {rank} of {ranks}: ok", flush=True)
