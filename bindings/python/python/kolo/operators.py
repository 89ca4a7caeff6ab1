"""Reductions with operators that are Python functions.

``op(a, b)`` combines two arrays of one shape element by element and returns the result: a ufunc of NumPy such as ``numpy.hypot``,
or a function. It must be associative and need not commute: values are combined in the order of the ranks, from rank 0 on. Every
element is combined on one rank only, so all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from .errors import Mismatch, Usage
from .memory import is_native

#: Type checkers treat this name as true. Importing it from ``typing`` would take longer than importing Kolo.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .communicator import Communicator

#: Up to this many bytes per vector, every rank gets all vectors and combines them; above, every rank combines a part of them.
_SHORT_BYTES = 16 << 10

_ALL_ONES = (1 << 64) - 1

Operator = Callable[[object, object], object]


def all_reduce(comm: Communicator, buffer, op: Operator, out):
    """See :meth:`kolo.Communicator.all_reduce`."""
    values, out = _vector(buffer, out)
    _check_type(comm, "all_reduce", values.dtype)
    out[...] = _reduced(comm, values, op).reshape(out.shape)
    return out


def reduce(comm: Communicator, buffer, op: Operator, root: int, out):
    """See :meth:`kolo.Communicator.reduce`."""
    values, out = _vector(buffer, out, comm.rank == root)
    _check_type(comm, "reduce", values.dtype)
    if values.nbytes <= _SHORT_BYTES:
        parts = comm.gather(_moved(values), root=root)
        if comm.rank == root:
            out[...] = _fold(comm, op, _rows(parts, values)).reshape(out.shape)
        return out
    part, counts = _own_part(comm, values, op)
    room = _moved(out if out.flags.c_contiguous else values.copy()) if comm.rank == root else None
    comm.gather_v(_moved(part), room, _scaled(counts, values), root)
    if comm.rank == root and not out.flags.c_contiguous:
        out[...] = room.view(values.dtype).reshape(out.shape)
    return out


def reduce_scatter(comm: Communicator, input, op: Operator, out):
    """See :meth:`kolo.Communicator.reduce_scatter`."""
    values, out = _array("the input", input), _array("out", out)
    if values.size != out.size * comm.world_size or values.dtype != out.dtype:
        raise Usage(f"the input has {values.size} elements, but must have {out.size * comm.world_size} of the type of out")
    _check_type(comm, "reduce_scatter", values.dtype)
    blocks = _exchanged(comm, values, [out.size] * comm.world_size)
    out[...] = _fold(comm, op, blocks).reshape(out.shape)
    return out


def scan(comm: Communicator, buffer, op: Operator, out, inclusive: bool):
    """See :meth:`kolo.Communicator.scan` and :meth:`kolo.Communicator.exscan`."""
    values, out = _vector(buffer, out)
    _check_type(comm, "scan" if inclusive else "exscan", values.dtype)
    parts = _rows(comm.all_gather(_moved(values)), values)
    last = comm.rank + inclusive
    if last > 0:
        out[...] = _fold(comm, op, parts[:last]).reshape(out.shape)
    return out


def _reduced(comm: Communicator, values, op: Operator):
    if values.nbytes <= _SHORT_BYTES or comm.world_size == 1:
        return _fold(comm, op, _rows(comm.all_gather(_moved(values)), values))
    part, counts = _own_part(comm, values, op)
    whole = values.copy()
    comm.all_gather_v(_moved(part), _moved(whole), _scaled(counts, values))
    return whole


def _own_part(comm: Communicator, values, op: Operator) -> tuple:
    """Returns this rank's part of the result, and the numbers of elements of all ranks' parts."""
    each, more = divmod(values.size, comm.world_size)
    counts = [each + (rank < more) for rank in range(comm.world_size)]
    return _fold(comm, op, _exchanged(comm, values, counts)), counts


def _exchanged(comm: Communicator, values, counts: list[int]):
    """Exchanges parts; returns all ranks' values of this rank's part, one row per rank."""
    import numpy

    own = counts[comm.rank]
    room = numpy.empty((comm.world_size, own), values.dtype)
    received = _scaled([own] * comm.world_size, values)
    comm.all_to_all_v(_moved(values), _scaled(counts, values), _moved(room), received)
    return room


def _fold(comm: Communicator, op: Operator, rows):
    """Combines rows in their order. If the operator raises, this aborts the communicator, since other ranks wait for this part."""
    try:
        whole = rows[0]
        for row in rows[1:]:
            made = op(whole, row)
            if getattr(made, "shape", None) != row.shape:
                raise Usage(f"the operator made {getattr(made, 'shape', made)!r} of two arrays of shape {row.shape}")
            whole = made.astype(row.dtype, copy=False)
        return whole
    except BaseException as problem:
        comm.abort(f"the operator of rank {comm.rank} raised {type(problem).__name__}: {problem}")
        raise


def _vector(buffer, out, writes: bool = True) -> tuple:
    """Returns the input as one contiguous row, and the array for the result, which need not be writable if nothing is to be written."""
    import numpy

    values = _array("the buffer", buffer)
    out = values if out is None else _array("out", out)
    if out.size != values.size or out.dtype != values.dtype:
        raise Usage(
            f"the input has {values.size} elements of '{values.dtype}', but out has {out.size} of '{out.dtype}'; they must "
            "agree"
        )
    if writes and not out.flags.writeable:
        raise Usage("out is read-only; pass another array")
    return numpy.ascontiguousarray(values).reshape(-1), out


def _array(what: str, obj):
    import numpy

    if not isinstance(obj, numpy.ndarray):
        raise Usage(f"{what} has type {type(obj).__name__}; user-defined operators combine NumPy arrays")
    if obj.dtype.hasobject:
        raise Usage(f"{what} holds Python objects, which only all_reduce_object and similar calls can move")
    return obj


def _rows(parts, values):
    """Turns bytes into vectors like ``values``, one row per vector."""
    return parts.reshape(-1).view(values.dtype).reshape(-1 if values.size else 1, values.size)


def _moved(values):
    """Returns the values as they are moved: with their own type if Kolo has it, so that every call checks it, else as bytes."""
    import numpy

    row = numpy.ascontiguousarray(values).reshape(-1)
    return row if is_native(row.dtype) else row.view(numpy.uint8)


def _scaled(counts: list[int], values) -> list[int]:
    """Converts numbers of elements to those of what :func:`_moved` returns."""
    return counts if is_native(values.dtype) else [count * values.itemsize for count in counts]


def _check_type(comm: Communicator, operation: str, dtype) -> None:
    """Expects that all ranks have the same type of elements, if Kolo does not have it and the calls move bytes. All ranks decide alike."""
    if comm.world_size == 1 or is_native(dtype):
        return
    import hashlib

    import numpy

    text = f"{operation} of {dtype}"
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    # The least digest, and the complement of the greatest.
    least, greatest = comm.all_reduce(numpy.array([digest, digest ^ _ALL_ONES], numpy.uint64), "min").tolist()
    if least == greatest ^ _ALL_ONES:
        return
    calls = comm.all_gather_object(text)
    other = next(rank for rank, call in enumerate(calls) if call != text)
    problem = f"rank {comm.rank} called {text}, but rank {other} called {calls[other]}, with operators of their own"
    raise Mismatch(problem, rank=comm.rank, operation=operation, peer=other)
