"""Kolo's flight recorder in the form that ``torchfrtrace`` reads.

Torch's own recorder sees only calls that go through torch's C++. Kolo keeps the last 512 collectives of each communicator anyway,
so its recorder adds no cost to a call. Messages are not recorded.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable

import torch.distributed as dist

from .errors import Usage

#: The names that torch's tools expect for some collectives.
_BASES = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
_DTYPES = {"f64": "Double", "f32": "Float", "f16": "Half", "bf16": "BFloat16", "i64": "Long", "i32": "Int", "i8": "Char"}
_DTYPES |= {"u8": "Byte", "u32": "UInt32", "u64": "UInt64", "bool": "Bool"}
#: The variable that says where torch's own backends write their dumps, and its older name.
_PLACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump_flight_record(path: str | os.PathLike | None = None) -> str:
    """Writes the last collectives of all of this process's Kolo groups to a file for ``torchfrtrace``; returns its path.

    The default path is ``TORCH_FR_DUMP_TEMP_FILE`` with the rank appended, as with torch's own backends. ``torchfrtrace`` takes
    the folder and the prefix of the files of all ranks: ``torchfrtrace folder --prefix trace_``.
    """
    from .engine import living

    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    if path is None:
        place = next((os.environ[name] for name in _PLACES if name in os.environ), None)
        if place is None:
            raise Usage(f"dump_flight_record: give a path, or set {_PLACES[0]} to the beginning of one")
        path = f"{place}{rank}"
    with open(path, "wb") as file:
        pickle.dump(record(living()), file)
    return os.fspath(path)


def record(engines: Iterable) -> dict:
    """Returns the contents of a dump of these engines' groups."""
    entries, groups, status = [], {}, {}
    for number, engine in enumerate(sorted(engines, key=lambda engine: engine.name)):
        if engine.comm.closed:
            continue
        name = engine.name
        groups[name] = {"name": name, "desc": name, "ranks": str(list(engine.ranks))}
        rows = engine.comm.records()
        done = [row[0] for row in rows if row[5] is not None]
        status[str(number)] = {
            "last_enqueued_collective": rows[-1][0] if rows else -1,
            "last_started_collective": rows[-1][0] if rows else -1,
            "last_completed_collective": max(done, default=-1),
        }
        entries += [_entry(engine, number, row) for row in rows]
    for at, entry in enumerate(entries):
        entry["record_id"] = at
    return {
        "version": "2.10",
        "comm_lib_version": "kolo",
        "pg_config": groups,
        "pg_status": status,
        "entries": entries,
        "rank": dist.get_rank() if dist.is_initialized() else 0,
    }


def _entry(engine, number: int, row: tuple) -> dict:
    sequence, name, count, data_type, started, took = row
    began = engine.born_ns + round(started * 1e9)
    ranks = engine.comm.world_size
    one, many = [[count or 0]], [[(count or 0) * ranks]]
    reads = many if name in ("reduce_scatter", "scatter", "all_to_all") else one
    writes = many if name in ("all_gather", "gather", "all_to_all") else one
    dtypes = [_DTYPES.get(data_type, data_type)]
    return {
        "pg_id": number,
        "process_group": (engine.name, engine.name),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"kolo:{_BASES.get(name, name)}",
        "time_created_ns": began,
        "input_sizes": [] if name == "barrier" else reads,
        "input_dtypes": [] if name == "barrier" else dtypes,
        "output_sizes": [] if name == "barrier" else writes,
        "output_dtypes": [] if name == "barrier" else dtypes,
        "state": "started" if took is None else "completed",
        "time_discovered_started_ns": began,
        "time_discovered_completed_ns": None if took is None else began + round(took * 1e9),
        "duration_ms": None if took is None else took * 1e3,
        "retired": took is not None,
        "timeout_ms": round(engine.seconds * 1000),
        "is_p2p": False,
        "frames": [],
    }
