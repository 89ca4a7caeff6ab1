"""The operations of ``torch.distributed`` on a communicator.

Each method takes the arguments that torch passes: lists of tensors and an options object. When called directly, it also takes a
single tensor, and in place of the options a root, an operator and a time-out, or nothing. A call whose options say
``asyncOp=False`` blocks and returns ``None``; any other call starts the operation and returns a work.
"""

from __future__ import annotations

import torch

from ..numbers import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SUM,
    U8,
)
from . import sparse
from .direct import options
from .engine import Engine
from .errors import Usage
from .tensors import (
    NATIVE,
    adjoining,
    check_devices,
    concatenated,
    copy_back,
    copying_back,
    expect_distinct,
    flat_room,
    moved_as,
    operator,
    reduced_as,
    room_for,
    room_in,
    staged,
    staged_to_reduce,
)

_SUM = (SUM, 1.0)

#: The values that direct calls give, besides a time-out.
_REDUCES, _ROOTED, _REDUCES_TO_ROOT, _PLAIN = ("op",), ("root",), ("root", "op"), ()


class Collectives:
    """Collectives; ``self._engine`` runs them."""

    _engine: Engine

    # Vectors.

    def allreduce(self, tensors, opts=None, *more, **named):
        opts = options("all_reduce", _REDUCES, opts, more, named)
        tensor = _only(tensors, "all_reduce")
        op, factor = _operator(opts)
        if tensor.is_sparse:
            return sparse.all_reduce(self._engine, tensor, op, opts)
        buffer = staged_to_reduce(tensor)
        kind, count = reduced_as(buffer, op)
        at = buffer.data_ptr()
        after = copying_back(tensor, buffer)
        arguments = (ALL_REDUCE, at, at, count, kind, op, factor, 0)
        return self._engine.collective("all_reduce", arguments, opts, buffer, [tensor], after)

    def broadcast(self, tensors, opts=None, *more, **named):
        opts = options("broadcast", _ROOTED, opts, more, named)
        tensor = _only(tensors, "broadcast")
        root = _root(opts)
        if self._engine.comm.rank == root:
            buffer, after = staged(tensor), None
        else:
            buffer = room_for(tensor)
            after = copying_back(tensor, buffer)
        kind, count = moved_as(buffer)
        at = buffer.data_ptr()
        arguments = (BROADCAST, at, at, count, kind, SUM, 1.0, root)
        return self._engine.collective("broadcast", arguments, opts, buffer, [tensor], after)

    def reduce(self, tensors, opts=None, *more, **named):
        opts = options("reduce", _REDUCES_TO_ROOT, opts, more, named)
        tensor = _only(tensors, "reduce")
        op, factor = _operator(opts)
        root = _root(opts)
        buffer = staged_to_reduce(tensor)
        kind, count = reduced_as(buffer, op)
        at = buffer.data_ptr()
        if self._engine.comm.rank == root:
            after = copying_back(tensor, buffer)
            arguments = (REDUCE, at, at, count, kind, op, factor, root)
        else:
            after = None
            arguments = (REDUCE, at, 0, count, kind, op, factor, root)
        return self._engine.collective("reduce", arguments, opts, buffer, [tensor], after)

    def barrier(self, opts=None, *more, **named):
        opts = options("barrier", _PLAIN, opts, more, named)
        arguments = (BARRIER, 0, 0, 0, U8, SUM, 1.0, 0)
        return self._engine.collective("barrier", arguments, opts, None, [])

    # One buffer, or both, has a block per rank, in one tensor.

    def all_gather_single(self, output, input, opts=None, *more, **named):
        opts = options("all_gather_into_tensor", _PLAIN, opts, more, named)
        ranks = self._engine.comm.world_size
        if output.numel() != input.numel() * ranks or output.dtype != input.dtype:
            raise _unfit("all_gather_into_tensor", "output", output, "input", input, ranks)
        return self._engine.collective("all_gather", *self._gathering(output, input, opts), [input])

    def reduce_scatter_single(self, output, input, opts=None, *more, **named):
        opts = options("reduce_scatter_tensor", _REDUCES, opts, more, named)
        ranks = self._engine.comm.world_size
        if input.numel() != output.numel() * ranks or output.dtype != input.dtype:
            raise _unfit("reduce_scatter_tensor", "input", input, "output", output, ranks)
        check_devices((output, input))
        return self._engine.collective("reduce_scatter", *self._scattering(output, input, opts), [input])

    def gather_single(self, output, input, opts=None, *more, **named):
        """Ranks other than the root may pass any output: nothing is written to it."""
        opts = options("gather_single", _ROOTED, opts, more, named)
        root = _root(opts)
        if self._engine.comm.rank != root:
            return self._hand_over(input, root, opts)
        ranks = self._engine.comm.world_size
        if output.numel() != input.numel() * ranks or output.dtype != input.dtype:
            raise _unfit("gather_single", "output", output, "input", input, ranks)
        check_devices((output, input))
        source, room = staged(input), room_for(output)
        kind, count = moved_as(source)
        after = copying_back(output, room)
        arguments = (GATHER, source.data_ptr(), room.data_ptr(), count, kind, SUM, 1.0, root)
        return self._engine.collective("gather", arguments, opts, (source, room), [output], after, [input])

    def all_to_all_single(self, output, input, output_split_sizes=(), input_split_sizes=(), opts=None, *more, **named):
        opts = options("all_to_all_single", _PLAIN, opts, more, named)
        check_devices((output, input))
        if output.dtype != input.dtype:
            raise Usage(f"all_to_all_single: the input is {input.dtype}, but the output is {output.dtype}")
        source, room = staged(input), room_for(output)
        after = copying_back(output, room)
        kind, received = moved_as(room)
        _, sent = moved_as(source)
        ranks = self._engine.comm.world_size
        if not output_split_sizes and not input_split_sizes:
            if sent != received:
                raise Usage(
                    f"all_to_all_single: an input of {input.numel()} and an output of {output.numel()} elements do not "
                    "have equal blocks; give split sizes"
                )
            _expect_even("input", source, ranks)
            _expect_even("output", room, ranks)
            arguments = (ALL_TO_ALL, source.data_ptr(), room.data_ptr(), sent // ranks, kind, SUM, 1.0, 0)
            return self._engine.collective(
                "all_to_all", arguments, opts, (source, room), [output], after, [input]
            )
        sends = _split_counts("input", source, sent, input_split_sizes, ranks)
        receives = _split_counts("output", room, received, output_split_sizes, ranks)
        arguments = (ALL_TO_ALL, source.data_ptr(), sends, room.data_ptr(), receives, kind, SUM, 1.0, 0)
        owner = (source, room)
        return self._engine.irregular("all_to_all", arguments, opts, owner, [output], after, [input])

    # The same collectives with a tensor per block.

    def allgather(self, outputs, inputs, opts=None, *more, **named):
        opts = options("all_gather", _PLAIN, opts, more, named)
        outputs, input = _lists(outputs, inputs, "all_gather")
        even, arguments, owner, after = self._gathering_apart(outputs, input)
        run = self._engine.collective if even else self._engine.irregular
        return run("all_gather", arguments, opts, owner, outputs, after, [input])

    def _gathering_apart(self, outputs, input) -> tuple:
        """Prepares an all-gather into a tensor per rank. Returns whether the blocks are equal, the arguments, the owner of the
        memory, and a function to call at the end."""
        self._expect_per_rank("all_gather", "output", outputs)
        check_devices((input, *outputs))
        _expect_types("all_gather", input, outputs)
        source = staged(input)
        kind, own = moved_as(source)
        if any(output.numel() != input.numel() for output in outputs):
            room = flat_room(outputs[0], sum(output.numel() for output in outputs))
            counts = [moved_as(output)[1] for output in outputs]
            arguments = (ALL_GATHER, source.data_ptr(), [own], room.data_ptr(), counts, kind, SUM, 1.0, 0)
            return False, arguments, (source, room), _spread(room, outputs)
        if adjoining(outputs):
            room, after = outputs[0], None
        else:
            room = flat_room(outputs[0], input.numel() * len(outputs))
            after = _spread(room, outputs)
        arguments = (ALL_GATHER, source.data_ptr(), room.data_ptr(), own, kind, SUM, 1.0, 0)
        return True, arguments, (source, room), after

    def reduce_scatter(self, outputs, inputs, opts=None, *more, **named):
        opts = options("reduce_scatter", _REDUCES, opts, more, named)
        inputs, output = _lists(inputs, outputs, "reduce_scatter")
        self._expect_per_rank("reduce_scatter", "input", inputs)
        check_devices((output, *inputs))
        if any(input.numel() != output.numel() for input in inputs):
            return self._reduce_scatter_uneven(output, inputs, opts)
        joined = concatenated(inputs)
        return self._engine.collective("reduce_scatter", *self._scattering(output, joined, opts), inputs)

    def _reduce_scatter_uneven(self, output, inputs, opts):
        op, factor = _operator(opts)
        joined = staged_to_reduce(concatenated(inputs))
        room = room_in(joined, output)
        kind, _ = reduced_as(joined, op)
        units = moved_as(joined)[1] // max(joined.numel(), 1)
        counts = [input.numel() * units for input in inputs]
        arguments = (
            REDUCE_SCATTER,
            joined.data_ptr(),
            counts,
            room.data_ptr(),
            [output.numel() * units],
            kind,
            op,
            factor,
            0,
        )
        owner, after = (joined, room), copying_back(output, room)
        return self._engine.irregular("reduce_scatter", arguments, opts, owner, [output], after, inputs)

    def alltoall(self, outputs, inputs, opts=None, *more, **named):
        opts = options("all_to_all", _PLAIN, opts, more, named)
        self._expect_per_rank("all_to_all", "output", outputs)
        self._expect_per_rank("all_to_all", "input", inputs)
        check_devices((*outputs, *inputs))
        _expect_types("all_to_all", inputs[0], (*inputs, *outputs))
        joined = staged(concatenated(inputs))
        room = flat_room(outputs[0], sum(output.numel() for output in outputs))
        kind, _ = moved_as(joined)
        sends = [moved_as(input)[1] for input in inputs]
        receives = [moved_as(output)[1] for output in outputs]
        arguments = (ALL_TO_ALL, joined.data_ptr(), sends, room.data_ptr(), receives, kind, SUM, 1.0, 0)
        owner, after = (joined, room), _spread(room, outputs)
        return self._engine.irregular("all_to_all", arguments, opts, owner, outputs, after, inputs)

    def gather(self, outputs, inputs, opts=None, *more, **named):
        opts = options("gather", _ROOTED, opts, more, named)
        root = _root(opts)
        input = _only(inputs, "gather")
        if self._engine.comm.rank != root:
            return self._hand_over(input, root, opts)
        outputs = _list(outputs, "gather")
        self._expect_per_rank("gather", "output", outputs)
        self._expect_alike("gather", input, outputs)
        source, room = staged(input), flat_room(outputs[0], input.numel() * len(outputs))
        kind, count = moved_as(source)
        arguments = (GATHER, source.data_ptr(), room.data_ptr(), count, kind, SUM, 1.0, root)
        owner, after = (source, room), _spread(room, outputs)
        return self._engine.collective("gather", arguments, opts, owner, outputs, after, [input])

    def scatter(self, outputs, inputs, opts=None, *more, **named):
        opts = options("scatter", _ROOTED, opts, more, named)
        root = _root(opts)
        output = _only(outputs, "scatter")
        room = room_for(output)
        kind, count = moved_as(room)
        after = copying_back(output, room)
        source = None
        if self._engine.comm.rank != root:
            inputs = []
        else:
            inputs = _list(inputs, "scatter")
            self._expect_per_rank("scatter", "input", inputs)
            self._expect_alike("scatter", output, inputs)
            source = staged(concatenated(inputs))
        at = 0 if source is None else source.data_ptr()
        arguments = (SCATTER, at, room.data_ptr(), count, kind, SUM, 1.0, root)
        owner = (source, room)
        return self._engine.collective("scatter", arguments, opts, owner, [output], after, inputs)

    # Helpers.

    def _hand_over(self, input, root: int, opts):
        """Gives the input to the root of a gather."""
        source = staged(input)
        kind, count = moved_as(source)
        arguments = (GATHER, source.data_ptr(), 0, count, kind, SUM, 1.0, root)
        return self._engine.collective("gather", arguments, opts, source, [], None, [input])

    def _gathering(self, output, input, opts) -> tuple:
        check_devices((output, input))
        source, room = staged(input), room_for(output)
        kind, count = moved_as(source)
        after = copying_back(output, room)
        arguments = (ALL_GATHER, source.data_ptr(), room.data_ptr(), count, kind, SUM, 1.0, 0)
        return arguments, opts, (source, room), [output], after

    def _scattering(self, output, input, opts) -> tuple:
        op, factor = _operator(opts)
        source = staged_to_reduce(input)
        fits = source.dtype == output.dtype
        room = room_for(output) if fits else room_in(source, output)
        kind, _ = reduced_as(source, op)
        _, count = moved_as(room)
        after = copying_back(output, room)
        arguments = (REDUCE_SCATTER, source.data_ptr(), room.data_ptr(), count, kind, op, factor, 0)
        return arguments, opts, (source, room), [output], after

    def _expect_per_rank(self, name: str, what: str, tensors) -> None:
        ranks = self._engine.comm.world_size
        if len(tensors) != ranks:
            raise Usage(f"{name}: {len(tensors)} {what} tensors were given, but one per rank is needed: {ranks}")
        if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
            raise Usage(f"{name}: the {what} tensors are of different types")

    def _expect_alike(self, name: str, one, tensors) -> None:
        check_devices((one, *tensors))
        for rank, tensor in enumerate(tensors):
            if tensor.numel() != one.numel() or tensor.dtype != one.dtype:
                raise Usage(
                    f"{name}: the tensor for rank {rank} has {tensor.numel()} elements of {tensor.dtype}, but this rank's "
                    f"own has {one.numel()} of {one.dtype}; they must agree"
                )


def _expect_types(name: str, one, tensors) -> None:
    for tensor in tensors:
        if tensor.dtype != one.dtype:
            raise Usage(f"{name}: one tensor has elements of {tensor.dtype}, another of {one.dtype}; they must agree")


def _only(tensors, name: str):
    """Returns the one tensor, or list of tensors, that torch has wrapped in a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise Usage(f"{name}: {len(tensors)} tensors were given, but Kolo works on one per process")
    return tensors[0]


def _list(many, name: str):
    """Returns the list of tensors, which torch has wrapped in a list, and direct calls have not."""
    is_flat = isinstance(many, (list, tuple)) and many and isinstance(many[0], torch.Tensor)
    return many if is_flat else _only(many, name)


def _lists(many, one, name: str):
    """Returns the list of tensors and the single one, from either of the forms that torch passes."""
    return _list(many, name), _only(one, name)


def _operator(opts) -> tuple[int, float]:
    return _SUM if opts is None else operator(opts.reduceOp)


def _root(opts) -> int:
    return 0 if opts is None else opts.rootRank


def _spread(room, outputs):
    for output in outputs:
        expect_distinct(output)

    def spread() -> None:
        parts = room.split([output.numel() for output in outputs])
        for output, part in zip(outputs, parts):
            copy_back(output, part)

    return spread


def _split_counts(what: str, tensor, count: int, sizes, ranks: int) -> list[int]:
    """Converts torch's split sizes, which are along the first axis, to Kolo's counts."""
    if not sizes:
        _expect_even(what, tensor, ranks)
        return [count // ranks] * ranks
    rows = _rows(what, tensor)
    if len(sizes) != ranks or sum(sizes) != rows:
        raise Usage(
            f"all_to_all_single: {what} split sizes {list(sizes)} must be {ranks} numbers that add up to the {rows} rows"
        )
    row = count // rows if rows else 0
    return [size * row for size in sizes]


def _expect_even(what: str, tensor, ranks: int) -> None:
    """Expects equal blocks of whole rows, as torch does: a block that ends inside a row, or even inside a complex number, would give
    its parts to different ranks."""
    rows = _rows(what, tensor)
    if rows % ranks:
        raise Usage(
            f"all_to_all_single: the {what} has {rows} rows, which are not {ranks} equal blocks; give split sizes"
        )


def _rows(what: str, tensor) -> int:
    if not tensor.dim():
        raise Usage(f"all_to_all_single: the {what} has no dimension, along which its blocks would lie")
    return tensor.size(0)


def _unfit(name: str, long: str, many, short: str, one, ranks: int) -> Usage:
    return Usage(
        f"{name}: the {long} has {many.numel()} elements of {many.dtype}, the {short} {one.numel()} of {one.dtype}; the "
        f"{long} must have {ranks} times as many of the same type"
    )
