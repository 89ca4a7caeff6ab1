"""Operations on several tensors at once, and coalescing regions, which collect operations."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import torch

from .direct import options
from .engine import Engine
from .errors import Usage
from .operations import _PLAIN, _REDUCES, _operator, _unfit
from .tensors import check_devices, concatenated, copy_back, expect_distinct, reduced_as, staged_to_reduce
from .work import NO_TIMEOUT, Finished, KoloWork
from ..numbers import ALL_REDUCE

#: Tensors below this size are joined into one, since copying them twice takes less time than one more operation.
_JOINED_BYTES = 64 << 10


class Coalesced:
    """The coalesced forms; ``self._engine`` runs them."""

    _engine: Engine

    def allreduce_coalesced(self, tensors, opts=None, *more, **named):
        opts = options("all_reduce_coalesced", _REDUCES, opts, more, named)
        op, factor = _operator(opts)
        check_devices(tensors)
        starts, after = [], []
        for part in _parts(tensors):
            # Joined on their device, since it may fill a copy on the host later.
            whole = staged_to_reduce(part[0] if len(part) == 1 else concatenated(part))
            kind, count = reduced_as(whole, op)
            arguments = (ALL_REDUCE, whole.data_ptr(), whole.data_ptr(), count, kind, op, factor, 0)
            starts.append(partial(self._engine.comm.start, arguments, whole))
            if len(part) > 1 or whole is not part[0]:
                for tensor in part:
                    expect_distinct(tensor)
                after.append((whole, part))
        return self._together("all_reduce_coalesced", starts, opts, list(tensors), lambda: _split(after), list(tensors))

    def all_gather_single_coalesced(self, outputs, inputs, opts=None, *more, **named):
        opts = options("all_gather_coalesced", _PLAIN, opts, more, named)
        ranks = self._engine.comm.world_size
        for output, input in _pairs(outputs, inputs):
            if output.numel() != input.numel() * ranks or output.dtype != input.dtype:
                raise _unfit("all_gather_into_tensor", "output", output, "input", input, ranks)
        made = [self._gathering(output, input, opts) for output, input in zip(outputs, inputs)]
        return self._all_of("all_gather_coalesced", made, outputs, inputs)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None, *more, **named):
        opts = options("reduce_scatter_coalesced", _REDUCES, opts, more, named)
        ranks = self._engine.comm.world_size
        for output, input in _pairs(outputs, inputs):
            if input.numel() != output.numel() * ranks or output.dtype != input.dtype:
                raise _unfit("reduce_scatter_tensor", "input", input, "output", output, ranks)
        for pair in zip(outputs, inputs):
            check_devices(pair)
        made = [self._scattering(output, input, opts) for output, input in zip(outputs, inputs)]
        return self._all_of("reduce_scatter_coalesced", made, outputs, inputs)

    def allgather_coalesced(self, output_lists, inputs, opts=None, *more, **named):
        """Gives ``output_lists[r][i]`` the input i of rank r."""
        opts = options("all_gather_coalesced", _PLAIN, opts, more, named)
        comm, starts, after = self._engine.comm, [], []
        for i, input in enumerate(inputs):
            even, arguments, owner, spread = self._gathering_apart([tensors[i] for tensors in output_lists], input)
            starts.append(partial(comm.start if even else comm.start_v, arguments, owner))
            if spread is not None:
                after.append(spread)
        outputs = [tensor for tensors in output_lists for tensor in tensors]
        return self._together("all_gather_coalesced", starts, opts, outputs, lambda: _each(after), list(inputs))

    def _all_of(self, name: str, made, outputs, inputs):
        if len(made) == 1:
            return self._engine.collective(name, *made[0], list(inputs))
        starts = [partial(self._engine.comm.start, arguments, owner) for arguments, _, owner, _, _ in made]
        after = [after for *_, after in made if after is not None]
        opts = made[0][1] if made else None
        return self._together(name, starts, opts, list(outputs), lambda: _each(after), list(inputs))

    def _together(self, name: str, starts, opts, outputs, after, inputs):
        if not starts:
            return Finished()
        return self._engine.several(name, starts, opts, outputs, after, inputs)

    # Torch calls these two around operations that should run as one.

    def start_coalescing(self, *_) -> None:
        if self._engine.collected is not None:
            raise Usage("coalescing has already been started; end it first")
        self._engine.collected = []

    def end_coalescing(self, *_):
        works, self._engine.collected = self._engine.collected or [], None
        return Several(self._engine, works, [tensor for work in works for tensor in work._outputs])


class Several(KoloWork):
    """The work of a coalescing region; complete when all of its works are."""

    def __init__(self, engine: Engine, works: list, outputs: list) -> None:
        messages = any(work.has_messages for work in works)
        super().__init__(engine, (), outputs, None, engine.seconds, has_messages=messages)
        self._all = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        until = time.monotonic() + self._limit(timeout)
        for work in self._all:
            work.wait(timedelta(seconds=max(until - time.monotonic(), 1e-6)))
        return True

    def is_completed(self) -> bool:
        # A list, since each poll must reach every work: the limits of all works count from the first one.
        return all([work.is_completed() for work in self._all])

    def _is_over(self) -> bool:
        return all(work._is_over() for work in self._all)

    def exception(self):
        return next((error for work in self._all if (error := work.exception()) is not None), None)


def _pairs(outputs, inputs):
    if len(outputs) != len(inputs):
        raise Usage(f"{len(outputs)} outputs and {len(inputs)} inputs were given; their numbers must be equal")
    return zip(outputs, inputs)


def _parts(tensors):
    """Yields groups of tensors: small ones of one type together, large ones alone. The order depends on types and sizes only."""
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() * tensor.element_size() < _JOINED_BYTES:
            small.setdefault(tensor.dtype, []).append(tensor)
        else:
            yield [tensor]
    yield from small.values()


def _each(after) -> None:
    for copy in after:
        copy()


def _split(after) -> None:
    for whole, part in after:
        at = 0
        for tensor in part:
            copy_back(tensor, whole.view(-1)[at : at + tensor.numel()])
            at += tensor.numel()
