"""Failures raise an exception that says what happened, on every rank, within the time-out; and the process ends."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import forked
from group_ranks import join, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kolo
import kolo.torch

#: Seconds within which a rank must learn of a failure, on a machine where other tests run.
SOON = 20


def refused(match, call):
    with pytest.raises(dist.DistBackendError, match=match) as caught:
        call()
    assert isinstance(caught.value, (kolo.Usage, kolo.Unsupported)), caught.value


def test_tensors_on_different_or_unknown_devices():
    def body():
        here, elsewhere = torch.ones(2), torch.ones(2, device="meta")
        refused("different devices: cpu, meta", lambda: dist.all_gather([here, elsewhere], here))
        refused("different devices", lambda: dist.all_gather_into_tensor(torch.ones(4, device="meta"), here))
        refused("different devices", lambda: dist.all_to_all_single(here, elsewhere))
        refused("on device 'meta'", lambda: dist.group.WORLD.allreduce([elsewhere]))
        refused("layout torch.sparse_coo", lambda: dist.group.WORLD.broadcast([torch.ones(2).to_sparse()], 0))
        dist.barrier()

    run(2, body)


class Wrapper(torch.Tensor):
    """A tensor whose values are elsewhere."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError(function)


def test_tensors_without_memory():
    def body():
        wrapper, x = Wrapper((2,)), torch.ones(2)
        other = 1 - dist.get_rank()
        refused("a Wrapper, which has no memory of its own", lambda: dist.send(wrapper, other))
        refused("a Wrapper", lambda: dist.recv(wrapper, other))
        refused("a Wrapper", lambda: dist.all_reduce(wrapper))
        refused("a Wrapper", lambda: dist.reduce_scatter(x, [wrapper, wrapper]))
        refused("a Wrapper", lambda: dist.all_gather([wrapper, wrapper], x))
        # What sharded training does with parameters that it has set aside.
        x.untyped_storage().resize_(0)
        refused("null pointer", lambda: dist.send(x, other))
        refused("null pointer", lambda: dist.all_reduce(x))
        dist.barrier()

    run(2, body)


def test_outputs_whose_elements_share_memory():
    def body():
        n, plain, values = dist.get_world_size(), torch.ones(4), torch.zeros(1)
        shared, both = values.expand(4), values.expand(4 * dist.get_world_size())
        clone = "share memory, .* pass a clone"
        refused(clone, lambda: dist.all_reduce(shared))
        refused(clone, lambda: dist.all_reduce(shared, async_op=True))
        refused(clone, lambda: dist.all_gather_into_tensor(both, plain))
        refused(clone, lambda: dist.all_gather([shared] * n, plain))
        refused(clone, lambda: dist.all_reduce_coalesced([torch.ones(2), shared]))
        refused(clone, lambda: dist.recv(shared, 1 - dist.get_rank()))
        # Such a tensor can be read.
        dist.all_gather_into_tensor(torch.zeros(8), shared)
        ones = torch.ones(1).expand(4)
        received = ones if dist.get_rank() == 0 else torch.zeros(4)
        dist.broadcast(received, 0)
        assert torch.all(received == 1) and torch.all(values == 0)

    run(2, body)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo"])
def test_tags_that_there_are_not(backend):
    def body():
        x, other = torch.ones(2), 1 - dist.get_rank()
        refused("send: the tag is -1, but tags are numbers from 0", lambda: dist.isend(x, other, tag=-1))
        refused("recv: the tag is -1", lambda: dist.recv(x, other, tag=-1))
        if backend == "kolo":  # torch's C++ has no larger ones
            refused("the tag is 4294967296", lambda: dist.send(x, other, tag=1 << 32))
        sent = dist.isend(x, other, tag=2**31 - 1)
        dist.recv(torch.zeros(2), other, tag=2**31 - 1)
        sent.wait()

    run(2, body, backend=backend)


def test_types_that_an_operator_is_not_defined_for():
    def body():
        refused("bit_and is not defined for f32", lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
        refused("avg is not defined for bool", lambda: dist.all_reduce(torch.ones(2).bool(), dist.ReduceOp.AVG))
        refused("complex", lambda: dist.group.WORLD.allreduce([torch.ones(2, dtype=torch.cfloat)], dist.ReduceOp.MAX))
        dist.barrier()

    run(2, body)


def test_types_of_one_call_that_differ():
    def body():
        x, short = torch.ones(3), [torch.ones(3, dtype=torch.float16) for _ in range(2)]
        refused("must agree", lambda: dist.group.WORLD.allgather([short], [x]))
        refused("must agree", lambda: dist.group.WORLD.alltoall(short, [x, x]))
        refused("different types", lambda: dist.group.WORLD.alltoall([x.clone(), x.clone()], [x, short[0]]))
        dist.barrier()

    run(2, body)


def test_lengths_that_do_not_fit_on_one_rank():
    def body():
        x = torch.ones(3)
        refused("2 times as many", lambda: dist.all_gather_into_tensor(torch.ones(5), x))
        own = _root_options(dist.get_rank())
        refused("2 times as many", lambda: dist.group.WORLD.gather_single(torch.ones(5), x, own))
        refused("2 times as many", lambda: dist.reduce_scatter_tensor(torch.ones(2), x))
        refused("give split sizes", lambda: dist.all_to_all_single(torch.ones(3), x))
        refused("add up to the 3 rows", lambda: dist.all_to_all_single(torch.ones(3), x, [1, 1], [1, 2]))
        refused("one per rank", lambda: dist.group.WORLD.allgather([[x]], [x]))
        refused("must agree", lambda: dist.group.WORLD.gather([[x, torch.ones(4)]], [x], _root_options(dist.get_rank())))
        refused("root 5 is out of range", lambda: dist.group.WORLD.broadcast([x], 5))
        dist.barrier()

    def _root_options(root):
        options = dist.GatherOptions()
        options.rootRank = root
        return options

    run(2, body)


def test_blocks_of_an_all_to_all_are_whole_rows():
    """A block that ended inside a row, or inside a number, would be cut in half silently."""

    def body():
        group = dist.group.WORLD
        for dtype in (torch.float32, torch.complex64, torch.float8_e5m2):
            for shape in ((3, 2), (3,), (1, 2), (1, 4)):
                x = torch.ones(shape).to(dtype)
                refused(f"the input has {shape[0]} rows, which are not 2", lambda: group.alltoall_base(x.clone(), x, [], []))
            refused("no dimension", lambda: group.alltoall_base(torch.ones(()).to(dtype), torch.ones(()).to(dtype), [], []))
        refused("the input has 3 rows", lambda: dist.all_to_all_single(torch.ones(3, 2), torch.ones(3, 2)))
        refused("the input has 3 rows", lambda: dist.all_to_all_single(torch.ones(3).cfloat(), torch.ones(3).cfloat()))
        refused("the output has 3 rows", lambda: dist.all_to_all_single(torch.ones(3, 2), torch.ones(6)))
        refused("no dimension", lambda: group.alltoall_base(torch.ones(()), torch.ones(2), [], [1, 1]))
        dist.all_to_all_single(torch.ones(0, 3), torch.ones(0, 3))
        out = torch.empty(2, 3)
        dist.all_to_all_single(out, torch.full((2, 3), float(dist.get_rank())))
        assert out.tolist() == [[0.0] * 3, [1.0] * 3]

    run(2, body)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", ["length", "type", "operation", "root", "operator"])
def test_ranks_that_do_not_agree(what, asynchronous):
    def body():
        me = dist.get_rank()
        odd = me == 1
        with pytest.raises(dist.DistBackendError) as caught:
            if what == "length":
                work = dist.all_reduce(torch.ones(5 if odd else 4), async_op=asynchronous)
            elif what == "type":
                work = dist.all_reduce(torch.ones(4, dtype=torch.int32 if odd else torch.float32), async_op=asynchronous)
            elif what == "operation":
                operation = dist.broadcast if odd else dist.reduce
                work = operation(torch.ones(4), 0, async_op=asynchronous)
            elif what == "root":
                work = dist.broadcast(torch.ones(4), int(odd), async_op=asynchronous)
            else:
                op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
                work = dist.all_reduce(torch.ones(4), op, async_op=asynchronous)
            if work is not None:
                work.wait()
            # A rank may finish its part before it sees a message that does not fit; it then gets the error at a later call.
            for _ in range(8):
                dist.barrier()
        text = str(caught.value)
        assert isinstance(caught.value, (kolo.Mismatch, kolo.Aborted)), text
        assert f"rank {me}" in text and text.count("called") >= 1, text

    run(3, body, seconds=SOON)


def test_a_rank_that_is_missing_at_the_start():
    def body(rank, ranks, folder):
        with pytest.raises(dist.DistBackendError) as caught:
            join(rank, ranks + 1, folder, seconds=2)
        assert isinstance(caught.value, kolo.Join)
        assert "2" in str(caught.value) and "rank" in str(caught.value), caught.value

    forked(2, body, limit=SOON)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_rank_that_dies_during_the_backward_pass(victim, how):
    def body():
        me = dist.get_rank()
        net = DistributedDataParallel(nn.Sequential(*[nn.Linear(50, 50) for _ in range(4)]), bucket_cap_mb=0.01)
        steps = []

        def die(_gradient):
            if me == victim and len(steps) == 3:
                os.kill(os.getpid(), signal.SIGKILL) if how == "killed" else os._exit(9)

        net.module[1].weight.register_hook(die)
        with pytest.raises(RuntimeError) as caught:
            for _ in range(1000):
                steps.append(None)
                net(torch.ones(3, 50)).sum().backward()
        assert f"rank {victim}" in str(caught.value), caught.value
        print(caught.value)

    ended = run(3, body, check=False, limit=SOON)
    codes = [end.code for end in ended]
    assert codes.pop(victim) in (-signal.SIGKILL, 9), ended
    assert codes == [0, 0], ended


@pytest.mark.parametrize("asynchronous", [False, True])
def test_time_outs(asynchronous):
    def body():
        store = dist.distributed_c10d._get_default_store()
        # Set only after joining, which may take longer on a busy machine.
        dist.group.WORLD.set_timeout(timedelta(seconds=1.5))
        dist.barrier()
        if dist.get_rank() == 2:
            store.get("over")  # instead of calling the collective
            return
        with pytest.raises(dist.DistBackendError) as caught:
            work = dist.all_reduce(torch.ones(4), async_op=asynchronous)
            if work is not None:
                work.wait()
        text = str(caught.value)
        assert "rank 2" in text or "Timed out" in text, text
        assert isinstance(caught.value, (kolo.Timeout, kolo.Aborted)), text
        store.set("over", "")

    run(3, body, limit=SOON)


@pytest.mark.parametrize("with_future", [False, True])
def test_a_time_out_of_one_wait(with_future):
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.get("over")
            return
        work = dist.all_reduce(torch.ones(4), async_op=True)
        if with_future:
            work.get_future()  # a thread that waits with the group's limit
        with pytest.raises(kolo.torch.Timeout, match="after 0.5 s"):
            work.wait(timedelta(seconds=0.5))
        assert isinstance(work.exception(), dist.DistBackendError) and not work.is_success()
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
        store.set("over", "")

    run(2, body, limit=SOON)


def test_a_monitored_barrier_names_who_is_absent():
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() in (1, 3):
            store.get("over")
            return
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=1))
        assert "ranks 1, 3 have not called it" in str(caught.value), caught.value
        failure = dist.group.WORLD._engine.failure
        assert isinstance(failure, kolo.torch.Timeout if dist.get_rank() == 0 else dist.DistBackendError), failure
        store.set("over", "")

    run(4, body, limit=SOON)


def test_a_monitored_barrier_without_a_time_out_names_who_is_absent():
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 2:
            store.get("over")
            return
        if dist.get_rank() == 0:
            # Rank 1 enters first, so that its own limit would end first.
            store.get("rank 1 enters")
        else:
            store.set("rank 1 enters", "")
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier()
        assert "rank 2 has not called it" in str(caught.value), caught.value
        if dist.get_rank() == 1:
            store.set("over", "")
        store.get("over")

    run(3, body, seconds=1, limit=SOON)


@pytest.mark.parametrize("way", ["blocking", "waited", "polled", "waited less"])
def test_a_sparse_all_reduce_that_fails_is_the_failure_of_its_group(way):
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.get("over")
            return
        if way == "waited less":
            dist.group.WORLD.set_timeout(timedelta(seconds=SOON))
        with pytest.raises(kolo.torch.Timeout):
            work = dist.all_reduce(torch.ones(2).to_sparse(), async_op=way != "blocking")
            while way == "polled" and not work.is_completed():
                pass
            work.wait(timedelta(seconds=0.2 if way == "waited less" else 0))
        assert isinstance(dist.group.WORLD._engine.failure, kolo.torch.Timeout)
        store.set("over", "")

    run(2, body, seconds=1, limit=SOON)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo"])
@pytest.mark.parametrize("all_ranks", [False, True])
def test_a_monitored_barrier_without_patience_answers_at_once(backend, all_ranks):
    def body():
        store = dist.distributed_c10d._get_default_store()
        dist.monitored_barrier(timeout=timedelta(seconds=SOON))
        # The group must not end before the other ranks have passed the barrier.
        store.set(f"through {dist.get_rank()}", "")
        store.wait([f"through {rank}" for rank in range(3)])
        if dist.get_rank() == 0:
            began = time.monotonic()
            with pytest.raises(RuntimeError) as caught:
                dist.monitored_barrier(timeout=timedelta(0), wait_all_ranks=all_ranks)
            # The group's own limit is 30 s.
            assert time.monotonic() - began < 5
            text = str(caught.value)
            assert "Rank 0 timed out in monitoredBarrier after 0 ms" in text, text
            assert ("Ranks 1, 2" if all_ranks else "Rank 1") + " failed to pass monitoredBarrier in 0 ms" in text, text
            assert isinstance(caught.value, kolo.Timeout) and caught.value.peer == 1
            store.set("over", "")
        store.get("over")

    run(3, body, backend=backend, limit=SOON)


def test_a_monitored_barrier_tells_those_who_came_whose_fault_it_is():
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            store.get("over")
            return
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=0.5))
        if dist.get_rank() == 2:
            for words in ("Rank 2 successfully reached monitoredBarrier", "Rank 1 failed to pass monitoredBarrier"):
                assert words in str(caught.value), caught.value
            store.set("over", "")
        # Rank 0 has told rank 2, and stays until rank 2 has heard it.
        store.get("over")

    run(3, body, limit=SOON)


def test_failed_futures_raise():
    def body():
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        future = dist.all_reduce(torch.ones(100_000), async_op=True).get_future()
        with pytest.raises(RuntimeError, match="rank 1"):
            future.wait()

    codes = [end.code for end in run(2, body, check=False, limit=SOON)]
    assert codes == [0, -signal.SIGKILL]


def test_aborting():
    def body():
        if dist.get_rank() == 0:
            dist.barrier()
            dist.group.WORLD.abort()
            with pytest.raises(dist.DistBackendError):
                dist.barrier()
        else:
            # Even the first barrier may fail: rank 0 can leave its own, and abort, as soon as all ranks have entered.
            with pytest.raises(dist.DistBackendError, match="aborted by rank 0"):
                for _ in range(1_000_000):
                    dist.barrier()

    run(3, body, limit=SOON)


def test_a_fork_cannot_use_the_group():
    def body():
        dist.all_reduce(torch.ones(2))
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(2))
            except dist.DistBackendError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        # The workers of a data loader are forks that do not use the group.
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2)
        assert sum(batch.sum() for batch in loader) == 28
        dist.all_reduce(torch.ones(2))

    run(2, body, limit=SOON)
