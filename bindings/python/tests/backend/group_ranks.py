"""Ranks with a process group."""

from datetime import timedelta

import harness
import torch
import torch._dynamo  # noqa: F401  DDP would import this in each rank; here it is imported once
import torch.distributed as dist

import kolo.torch  # noqa: F401

#: Time limit of every group that a test makes: a test that hangs ends with an error that says where.
SECONDS = 30


def run(ranks, body, *arguments, backend="kolo", seconds=SECONDS, end=True, **options):
    """Runs ``body(*arguments)`` on every rank of a default group."""
    return harness.forked(ranks, _join, body, arguments, backend, seconds, end, **options)


def join(rank, ranks, folder, backend="kolo", seconds=SECONDS, name="store"):
    """Makes the default group; the ranks meet in a file."""
    store = dist.FileStore(f"{folder}/{name}", ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))


def _join(rank, ranks, folder, body, arguments, backend, seconds, end):
    torch.manual_seed(0)
    join(rank, ranks, folder, backend, seconds)
    body(*arguments)
    if end:
        dist.destroy_process_group()
