"""Ranks of groups that can be reconfigured."""

from datetime import timedelta

import harness
import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

SECONDS = 30


class Member:
    """A rank of a group that can be reconfigured."""

    def __init__(self, rank, ranks, folder, **options):
        self.start, self.ranks = rank, ranks
        self.store = dist.FileStore(f"{folder}/store", ranks)
        timeout = timedelta(seconds=SECONDS)
        dist.init_process_group(
            "kolo", store=self.store, rank=rank, world_size=ranks, timeout=timeout, enable_reconfigure=True, **options
        )
        self.group = dist.group.WORLD
        self.backend = dist.get_backend_impl(self.group, torch.device("cpu"))

    def handles(self, name):
        self.store.set(f"{name}-{self.start}", dist._get_reconfigure_handle())
        return [self.store.get(f"{name}-{rank}").decode() for rank in range(self.ranks)]

    def meet_in_store(self, name):
        self.store.set(f"{name}-{self.start}", "")
        self.store.wait([f"{name}-{rank}" for rank in range(self.ranks)])


def reconfigure(uuid, handles, seconds=SECONDS):
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=seconds)).wait()


def expect(rank, ranks):
    """Checks this rank's number and the size of the group, and that all operations work."""
    group = dist.group.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks) == (group.rank(), group.size())
    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((4,), ranks * (ranks + 1) / 2))
    dist.broadcast(x.fill_(rank), group_src=ranks - 1)
    assert torch.equal(x, torch.full((4,), ranks - 1.0))
    parts = [torch.zeros(1) for _ in range(ranks)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    assert torch.cat(parts).tolist() == list(range(ranks))
    dist.barrier()


def run(ranks, body, *arguments, **options):
    return harness.forked(ranks, _member, body, arguments, **options)


def _member(rank, ranks, folder, body, arguments):
    body(Member(rank, ranks, folder), *arguments)
    dist.destroy_process_group()
