"""Groups, objects, barriers, and what torch expects of a backend."""

import os
import tempfile
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from group_ranks import SECONDS, run
from torch.distributed.device_mesh import init_device_mesh

import kolo


def test_new_groups():
    def body():
        me = dist.get_rank()
        evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
        mine = evens if me % 2 == 0 else odds
        x = torch.full((3,), float(me))
        dist.all_reduce(x, group=mine)
        assert torch.all(x == (2 if me % 2 == 0 else 4))
        x = torch.full((3,), float(me))
        dist.broadcast(x, src=mine is evens and 2 or 3, group=mine)
        assert torch.all(x == (2 if me % 2 == 0 else 3))
        assert dist.get_backend(mine) == "kolo" and dist.get_world_size(mine) == 2
        again = dist.new_group([0, 2])
        if me in (0, 2):
            dist.barrier(again)
        reverse = dist.new_group([3, 1], use_local_synchronization=False)
        if me in (1, 3):
            x = torch.tensor([float(me)])
            dist.broadcast(x, group_src=0, group=reverse)
            dist.destroy_process_group(reverse)
        local = dist.new_group([0, 1], use_local_synchronization=True) if me < 2 else None
        if me < 2:
            dist.barrier(local)
        mine, _ = dist.new_subgroups(2)
        dist.barrier(mine)

    run(4, body)


def test_a_group_forms_within_its_own_time_limit():
    def body():
        if dist.get_rank() == 1:
            time.sleep(5)  # the default group's time limit is over when this rank comes
        dist.barrier(dist.new_group(timeout=timedelta(seconds=SECONDS)))

    run(2, body, seconds=4)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo", "cpu:kolo,cuda:kolo", "gloo"])
def test_groups_that_merge(backend):
    """Two pairs of ranks become one group, twice."""

    def body(folder):
        pair = dist.split_group(split_ranks=[[0, 2], [1, 3]])
        for number in range(2):
            store = dist.PrefixStore(f"{number}", dist.FileStore(f"{folder}/merge", 4))
            whole = pair.merge_remote_group(store, 4, timedelta(seconds=SECONDS), group_name=f"whole {number}")
            assert whole.size() == 4
            x = torch.ones(3)
            whole.allreduce(x).wait()
            assert torch.all(x == 4)
            ranks = torch.zeros(4, dtype=torch.int64)
            whole.all_gather_single(ranks, torch.tensor([whole.rank()])).wait()
            assert ranks.tolist() == [0, 1, 2, 3]
            whole.shutdown()

    with tempfile.TemporaryDirectory() as folder:
        run(4, body, folder, backend=backend)


def test_split_group():
    def body():
        me = dist.get_rank()
        part = dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc="half")
        x = torch.full((3,), float(me))
        dist.all_reduce(x, group=part)
        assert torch.all(x == (1 if me < 2 else 5))
        part = dist.split_group(split_ranks=[[0, 3]])
        assert (part is dist.GroupMember.NON_GROUP_MEMBER) == (me in (1, 2))
        if me in (0, 3):
            work = dist.all_reduce(torch.ones(2), group=part, async_op=True)
            assert work.wait()

    run(4, body)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo", "gloo"])
def test_parts_have_the_default_names_of_torch(backend):
    def body():
        group = dist.group.WORLD
        split = [group.split_group(ranks) for ranks in ([0, 1], [1, 0])]
        split.append(group.split_group([0, 1], group_name="named", group_desc="described"))
        split.append(dist.split_group(split_ranks=[[0, 1]]))
        descriptions = ["default_pg:split:0", "default_pg:split:1", "described", "default_pg:split:2"]
        assert [part.group_desc for part in split] == descriptions
        assert [part.group_name for part in split[:3]] == ["0:split:[0, 1]", "0:split:[1, 0]", "named"]
        assert backend != "kolo" or split[0]._engine.name == "0:split:[0, 1]"

    run(2, body, backend=backend)


def test_a_kolo_group_beside_gloo():
    def body():
        group = dist.new_group(backend="kolo")
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        dist.all_reduce(x)
        assert torch.all(x == 4)

    run(2, body, backend="gloo")


def test_several_backends():
    def body():
        x = torch.ones(3)
        dist.all_reduce(x)
        assert torch.all(x == 2)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert torch.all(x == 4)
        dist.barrier()
        everybody = [None, None]
        dist.all_gather_object(everybody, dist.get_rank())
        assert everybody == [0, 1]

    run(2, body, backend="cpu:kolo,cuda:gloo")


def test_objects():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        everybody = [None] * n
        dist.all_gather_object(everybody, {"rank": me, "pad": "x" * me * 1000})
        assert [one["rank"] for one in everybody] == list(range(n))
        gathered = [None] * n if me == 1 else None
        dist.gather_object(("from", me), gathered, dst=1)
        assert gathered is None or gathered == [("from", r) for r in range(n)]
        objects = [1, "two", [3]] if me == 0 else [None] * 3
        dist.broadcast_object_list(objects, src=0)
        assert objects == [1, "two", [3]]
        out = [None]
        dist.scatter_object_list(out, [f"for {r}" for r in range(n)] if me == 0 else None, src=0)
        assert out == [f"for {me}"]
        if me == 0:
            dist.send_object_list([{"a": 1}], dst=1)
        elif me == 1:
            received = [None]
            dist.recv_object_list(received, src=0)
            assert received == [{"a": 1}]

    run(3, body)


def test_barriers_and_timeouts_can_be_set():
    def body():
        dist.barrier()
        dist.barrier(async_op=True).wait(timedelta(seconds=5))
        dist.monitored_barrier(timeout=timedelta(seconds=10))
        dist.monitored_barrier(wait_all_ranks=True)
        group = dist.group.WORLD
        group._enable_collectives_timing()
        group.set_timeout(timedelta(seconds=20))
        assert group._engine.seconds == 20
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=20)

    run(3, body)


def test_direct_calls_without_options():
    """DDP's communication hooks call the group's methods directly."""

    def body():
        group = dist.group.WORLD
        x = torch.ones(2)
        group.allreduce(x).wait()
        group.allreduce([x], dist.ReduceOp.MAX).wait()
        group.broadcast(x, 0).wait()
        group.barrier().wait()
        out = [torch.empty(2), torch.empty(2)]
        group.allgather(out, x).wait()
        group.allgather([out], [x]).wait()
        group._allgather_base(torch.empty(4), x).wait()
        group._reduce_scatter_base(x, torch.ones(4)).wait()
        group.alltoall_base(torch.empty(4), torch.ones(4), [], []).wait()
        group.reduce(x, 0).wait()

    run(2, body)


def test_direct_calls_give_root_operator_and_time_out_one_by_one():
    """As the methods of torch's own groups take them."""

    def body():
        group, me = dist.group.WORLD, dist.get_rank()
        patience = timedelta(seconds=20)

        def own():
            return torch.full((2,), 2.0 * me + 1)

        for arguments in ((dist.ReduceOp.MAX,), (dist.ReduceOp.MAX, patience), (dist.ReduceOp(dist.ReduceOp.MAX),)):
            x = own()
            assert group.allreduce([x], *arguments).wait() and x.tolist() == [3, 3]
            x = own()
            assert group.reduce(x, 1, *arguments).wait() and x.tolist() == ([3, 3] if me else [1, 1])
            assert group.reduce_scatter(x, [own(), own()], *arguments).wait() and x.tolist() == [3, 3]
        for call in (
            lambda x: group.reduce(x, 1),
            lambda x: group.reduce([x], root=1, op=dist.ReduceOp.SUM, timeout=patience),
            lambda x: group.reduce(x, 1, timeout=patience),
        ):
            x = own()
            assert call(x).wait() and x.tolist() == ([4, 4] if me else [1, 1])
        for call in (lambda x: group.broadcast(x, 1, patience), lambda x: group.broadcast(x, root=1)):
            x = own()
            assert call(x).wait() and x.tolist() == [3, 3]
        out = [torch.empty(2), torch.empty(2)]
        assert group.gather(out, own(), 1).wait() and (not me or torch.cat(out).tolist() == [1, 1, 3, 3])
        assert group.gather([out] if me else [], [own()], 1, patience).wait()
        x = torch.empty(2)
        assert group.scatter(x, [torch.zeros(2), torch.ones(2)], 1).wait() and x.tolist() == [me, me]
        assert group.scatter([x], [out] if me else [], root=1, timeout=patience).wait() and x.tolist() == [2 * me + 1] * 2
        assert group.barrier(patience).wait() and group.barrier(timeout=patience).wait()
        for wrong in (
            lambda: group.allreduce(x, 1),
            lambda: group.barrier(1),
            lambda: group.broadcast(x, dist.ReduceOp.MAX),
            lambda: group.broadcast(x, 0, 1),
            lambda: group.reduce(x, "1"),
            lambda: group.reduce(x, rank=1),
            lambda: group.reduce(x, root=dist.ReduceOp.MAX),
            lambda: group.broadcast(x, dist.BroadcastOptions(), patience),
        ):
            with pytest.raises(kolo.Usage):
                wrong()
        group.barrier().wait()

    run(2, body)


@pytest.mark.parametrize("call", ["allreduce", "broadcast", "reduce", "barrier", "gather", "alltoall_base"])
def test_the_time_out_of_a_direct_call_is_its_own(call):
    def body():
        group, x = dist.group.WORLD, torch.ones(2)
        store = dist.distributed_c10d._get_default_store()
        soon = timedelta(seconds=0.3)
        # The rank that waits, and the call in which it waits for the other one. The group's own limit is 30 s.
        waits, start = {
            "allreduce": (0, lambda: group.allreduce(x, timeout=soon)),
            "broadcast": (1, lambda: group.broadcast(x, 0, timeout=soon)),
            "reduce": (0, lambda: group.reduce(x, 0, timeout=soon)),
            "barrier": (0, lambda: group.barrier(soon)),
            "gather": (0, lambda: group.gather([x.clone(), x.clone()], x, 0, soon)),
            "alltoall_base": (0, lambda: group.alltoall_base(x.clone(), x, [], [], soon)),
        }[call]
        if dist.get_rank() == waits:
            with pytest.raises(kolo.Timeout, match="after 0.3 s"):
                start().wait()
            store.set("over", "")
        store.get("over")

    run(2, body)


def test_device_mesh():
    def body():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=mesh.get_group("shard"))
        assert x.item() == (1 if dist.get_rank() < 2 else 5)
        dist.all_reduce(x, group=mesh["replica"].get_group())
        assert x.item() == 6

    run(4, body)


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_debug_levels(level, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)

    def body():
        dist.set_debug_level_from_env()
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()

    run(2, body)


def test_groups_come_and_go():
    """Groups that are destroyed leave no thread and no file descriptor behind."""

    def used():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def body():
        def once():
            group = dist.new_group()
            work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
            work.get_future().wait()
            dist.destroy_process_group(group)

        once()
        threads, descriptors = used()
        # One or two of the threads that complete futures may stay; if every group left one, there would be ten more.
        before = threads + 1, descriptors
        for _ in range(10):
            once()
        # The kernel still lists a thread for a moment after Python has joined it.
        until = time.monotonic() + 10
        while any(is_now > was for is_now, was in zip(used(), before)):
            assert time.monotonic() < until, (before, used())
            os.sched_yield()

    run(2, body)
