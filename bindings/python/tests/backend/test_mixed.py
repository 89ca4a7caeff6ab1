"""Groups that use Kolo for one device and another backend for another device."""

import gc
import os
import re
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from group_ranks import SECONDS, run
from harness import forked
from torch.distributed.device_mesh import init_device_mesh

import kolo.torch

MIXED = "cpu:kolo,cuda:gloo"
LIMIT = timedelta(seconds=SECONDS)


@pytest.mark.parametrize(
    ("backend", "whole"),
    [("kolo", True), (MIXED, False), ("cuda:gloo,cpu:kolo", False), ("cpu:gloo,cuda:kolo", False), ("gloo", False)],
)
def test_who_serves_what(backend, whole):
    """The group is a ``KoloGroup`` only if no other backend serves one of its devices."""

    def body():
        group = dist.group.WORLD
        assert isinstance(group, kolo.torch.KoloGroup) == whole
        for part in backend.split(","):
            device, _, name = part.rpartition(":")
            for each in [device] if device else ["cpu"]:
                assert group._get_backend(torch.device(each)).name() == name
        x = torch.ones(2)
        dist.all_reduce(x)
        assert torch.all(x == 2)

    run(2, body, backend=backend)


def test_a_combination_that_torch_does_not_tell_in_time_is_refused():
    def body():
        with pytest.raises(kolo.torch.Unsupported, match="name other backends before Kolo, as in 'cpu:gloo,cuda:kolo'"):
            dist.all_reduce(torch.ones(2))

    run(2, body, backend="cuda:kolo,cpu:gloo")


def test_new_groups_are_as_the_default_one():
    def body():
        group = dist.new_group([0, 1])
        assert not isinstance(group, kolo.torch.KoloGroup)
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert torch.all(x == 2)

    run(2, body, backend=MIXED)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the threads of a process are counted in /proc")
def test_new_groups_use_the_connections_of_the_default_one():
    def body():
        def threads_of(backend):
            before = len(os.listdir("/proc/self/task"))
            groups = [dist.new_group(backend=backend) for _ in range(5)]
            return len(os.listdir("/proc/self/task")) - before, groups

        alone, _ = threads_of("gloo")
        both, groups = threads_of(MIXED)
        assert both <= alone
        for group in groups:
            x = torch.ones(2)
            dist.all_reduce(x, group=group)
            assert torch.all(x == 2)

    run(2, body, backend=MIXED)


def test_parts_of_a_group_have_names_and_limits_of_their_own():
    def body():
        seconds = timedelta(seconds=9)
        parts = [dist.split_group(split_ranks=[[0, 1]], timeout=seconds) for _ in range(2)]
        engines = [part._get_backend(torch.device("cpu"))._engine for part in parts]
        assert [engine.seconds for engine in engines] == [9, 9]
        assert engines[0].name != engines[1].name
        dist.group.WORLD.set_timeout(timedelta(seconds=8))
        part = dist.group.WORLD.split_group([0, 1])
        assert part._get_backend(torch.device("cpu"))._engine.seconds == 8
        # Gloo's half of the part may still be connecting on the other rank.
        dist.barrier()

    run(2, body, backend=MIXED)


@pytest.mark.parametrize("backend", ["cpu:kolo", MIXED, "cpu:gloo,cuda:kolo"])
def test_ranks_outside_a_part(backend):
    def body():
        part = dist.split_group(split_ranks=[[0, 1]])
        if dist.get_rank() == 2:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
        else:
            x = torch.ones(2)
            dist.all_reduce(x, group=part)
            assert torch.all(x == 2)
        y = torch.ones(2)
        dist.all_reduce(y)
        assert torch.all(y == 3)

    run(3, body, backend=backend)


def test_a_group_that_is_bound_to_a_device():
    def body(rank, ranks, folder):
        device, store = torch.device("cpu:0"), dist.FileStore(f"{folder}/store", ranks)
        dist.init_process_group("cpu:kolo", store=store, rank=rank, world_size=ranks, device_id=device, timeout=LIMIT)
        part = dist.new_group([0, 1])
        assert (part is dist.GroupMember.NON_GROUP_MEMBER) == (rank == 2)
        mesh = init_device_mesh("cpu", (1, 3), mesh_dim_names=("a", "b"))
        for group in (part, mesh["b"].get_group(), dist.group.WORLD):
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                x = torch.ones(2)
                dist.all_reduce(x, group=group)
                assert torch.all(x == group.size())
        dist.destroy_process_group()

    forked(3, body)


def test_torchs_wrapper_for_debugging():
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL`` puts it around each backend. It keeps the C++ object alone."""

    def body():
        group = dist.group.WORLD
        gc.collect()
        engine = group._get_backend(torch.device("cpu")).wrapped_pg._engine
        part = dist.split_group(split_ranks=[[0, 1]])
        # Later groups do not meet in the store, but use the connections of the default one.
        kolo.torch.group.StoreBoard = None
        made = dist.new_group([0, 1])
        gc.collect()
        for each in (group, part, made):
            if each is not dist.GroupMember.NON_GROUP_MEMBER:
                x = torch.ones(2)
                dist.all_reduce(x, group=each)
                assert torch.all(x == each.size())
        assert (part is dist.GroupMember.NON_GROUP_MEMBER) == (dist.get_rank() == 2)
        dist.destroy_process_group()
        assert engine.comm.closed

    # Set here for the ranks, which are forks: torch reads the variable when it is imported.
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        run(3, body, backend=MIXED, end=False)
    finally:
        dist.set_debug_level(level)


def test_polling():
    def body():
        x = torch.ones(100_000)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        assert work.is_success() and work.exception() is None
        assert torch.all(x == 2) and work.result()[0].data_ptr() == x.data_ptr()
        messages = [dist.isend(x, 1 - dist.get_rank()), dist.irecv(torch.zeros(100_000), 1 - dist.get_rank())]
        while not all(message.is_completed() for message in messages):
            pass
        # A receive does not report completion before its message has come.
        if dist.get_rank() == 0:
            late = dist.irecv(torch.zeros(1), 1)
            assert not late.is_completed()
            dist.distributed_c10d._get_default_store().set("looked", "")
            late.wait()
            assert late.is_completed()
        else:
            dist.distributed_c10d._get_default_store().get("looked")
            dist.send(torch.ones(1), 0)

    run(2, body, backend=MIXED)


def test_receives_from_any_source():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        if me:
            dist.send(torch.tensor([float(me)]), 0)
            return
        x = torch.zeros(1)
        sources = set()
        for _ in range(n - 1):
            source = dist.recv(x)
            assert x.item() == source
            sources.add(source)
        assert sources == set(range(1, n))

    run(3, body, backend=MIXED)


def test_other_backends_works_answer_as_before():
    """In a process that has a mixed group."""

    def body():
        gloo = dist.new_group(backend="gloo")
        x = torch.ones(1000)
        work = dist.all_reduce(x, group=gloo, async_op=True)
        assert work.wait() and work.is_completed() and work.is_success()
        other = 1 - dist.get_rank()
        y = torch.zeros(1)
        sent = dist.isend(torch.ones(1), other, group=gloo)
        assert dist.recv(y, group=gloo) == other
        sent.wait()

    run(2, body, backend=MIXED)


def test_works_of_several_threads():
    def body():
        groups = [dist.new_group() for _ in range(3)]
        wrong = []

        def use(group):
            for _ in range(20):
                x = torch.ones(500)
                work = dist.all_reduce(x, group=group, async_op=True)
                while not work.is_completed():
                    pass
                if not torch.all(x == 2):
                    wrong.append(x)

        threads = [threading.Thread(target=use, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    run(2, body, backend=MIXED)


@pytest.mark.parametrize("version", ["2.8.0", "2.13.1+cpu"])
def test_a_torch_that_is_too_old(tmp_path, version):
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kolo.torch"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: kolo.torch needs torch 2.14 or later; this is torch " + version), ended.stderr


def test_the_version_is_the_same_everywhere():
    from pathlib import Path

    folder = Path(__file__).parents[2]
    assert 'torch = ["torch>=2.14"]' in (folder / "pyproject.toml").read_text()
    for page in (folder.parents[1] / "docs" / "python.md", folder / "pyproject.toml"):
        text = page.read_text()
        assert "2.14" in text and not re.search(r"torch\W+2\.1[0-3]\b", text), page
