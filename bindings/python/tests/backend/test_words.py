"""Errors name the functions that users of torch.distributed call, and the options that they can set."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from group_ranks import join, run
from harness import forked

import kolo.torch

#: Words that no error text may contain under torch.
STRANGE = ("_start", "KOLO_", "0 x u8", "all_gather_v")


def plain(error):
    text = f"{error} {error.operation}"
    assert not any(word in text for word in STRANGE), text
    return text


def test_each_error_is_one_of_torch_too():
    kinds = [kind for kind in vars(kolo.errors).values() if isinstance(kind, type) and issubclass(kind, kolo.Error)]
    assert len(kinds) > 10
    for kind in kinds:
        told = kolo.torch.errors.translate(kind("a text", rank=1, operation="revoke", sequence=2, peer=None, code="K0101"))
        assert isinstance(told, kind) and isinstance(told, dist.DistBackendError), kind
        assert getattr(kolo.torch, kind.__name__) is type(told)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo"])
@pytest.mark.parametrize("name", ["all_reduce", "barrier", "all_gather"])
def test_time_outs(name, backend):
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(10)),
        "barrier": dist.barrier,
        # With blocks of different sizes.
        "all_gather": lambda: dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2 + dist.get_rank())),
    }

    def body():
        # Set only after joining, which may take longer on a busy machine.
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.get("over")
            return
        with pytest.raises(kolo.torch.Timeout) as caught:
            calls[name]()
        text = plain(caught.value)
        assert f"rank 0, {name}" in text and "rank 1" in text, text
        assert "timeout of init_process_group or new_group" in text, text
        store.set("over", "")

    run(2, body, backend=backend)


def test_mismatches():
    def body():
        with pytest.raises(dist.DistBackendError) as caught:
            for _ in range(8):
                dist.barrier() if dist.get_rank() else dist.all_reduce(torch.ones(10))
        text = plain(caught.value)
        assert "barrier" in text and "all_reduce(10 x f32, sum)" in text, text

    run(2, body)


def test_ranks_that_are_missing_at_the_start():
    def body(rank, ranks, folder):
        with pytest.raises(kolo.torch.Join) as caught:
            join(rank, ranks + 1, folder, seconds=1.5)
        text = str(caught.value)
        assert "KOLO_" not in text and "timeout of init_process_group or new_group" in text, text

    forked(2, body)
