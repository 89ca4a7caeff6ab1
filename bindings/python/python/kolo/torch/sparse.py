"""All-reduce of sparse tensors: every rank gathers the entries of all ranks and adds them up."""

from __future__ import annotations

from functools import partial

import torch

from ..errors import Error
from ..numbers import ALL_GATHER, AVG, I64, SUM
from .errors import Unsupported
from .tensors import moved_as
from .work import Finished


def all_reduce(engine, tensor: torch.Tensor, op: int, opts):
    """All-reduces in place. Blocks, since the ranks must first exchange their numbers of entries."""
    if op not in (SUM, AVG) or not tensor.device.type == "cpu":
        raise Unsupported("sparse tensors can only be all-reduced, with SUM or AVG, on the CPU")
    tensor_in = tensor.coalesce()
    indices = tensor_in.indices().t().contiguous()
    values = tensor_in.values().contiguous()
    ranks, limit = engine.comm.world_size, engine.limit(opts)
    own = torch.tensor([values.size(0)], dtype=torch.int64)
    entries = torch.empty(ranks, dtype=torch.int64)
    try:
        arguments = (ALL_GATHER, own.data_ptr(), entries.data_ptr(), 1, I64, SUM, 1.0, 0)
        engine.begin(partial(engine.comm.start, arguments, (own, entries))).wait(limit)
        counts = entries.tolist()
        all_indices = _gather(engine, indices, counts, limit)
        all_values = _gather(engine, values, counts, limit)
    except Error as error:
        raise engine.failed(error) from None
    total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape).coalesce()
    if op == AVG:
        total = total / ranks
    tensor.copy_(total)
    return Finished([tensor])


def _gather(engine, rows: torch.Tensor, counts: list[int], limit: float) -> torch.Tensor:
    room = torch.empty((sum(counts), *rows.shape[1:]), dtype=rows.dtype)
    kind, _ = moved_as(rows)
    width = moved_as(rows.new_empty((1, *rows.shape[1:])))[1]
    own = [rows.size(0) * width]
    elements = [count * width for count in counts]
    arguments = (ALL_GATHER, rows.data_ptr(), own, room.data_ptr(), elements, kind, SUM, 1.0, 0)
    engine.begin(partial(engine.comm.start_v, arguments, (rows, room))).wait(limit)
    return room
