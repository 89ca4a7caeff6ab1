"""Works and futures."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from group_ranks import run

import kolo.torch
from kolo.torch.coalesced import Several
from kolo.torch.work import KoloWork


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_works_overlap(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        tensors = [torch.full((50_000,), float(i + me)) for i in range(30)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i, (work, tensor) in enumerate(zip(works, tensors)):
            assert work.wait() is True
            assert work.is_completed() and work.is_success() and work.exception() is None
            assert torch.all(tensor == sum(i + r for r in range(n)))
            assert work.result()[0] is tensor

    run(ranks, body)


def test_the_outputs_are_there_once_a_poll_says_so():
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for length in (3, 100_000):
            outputs = [torch.zeros(length) for _ in range(n)]
            work = dist.all_gather(outputs, torch.full((length,), float(me)), async_op=True)
            while not work.is_completed():
                pass
            assert all(torch.all(output == rank) for rank, output in enumerate(outputs))
            assert work.wait() is True

    run(3, body)


def test_some_ranks_may_wait_where_others_start():
    def body():
        for length in (3, 100_000):
            x = torch.ones(length)
            work = dist.all_reduce(x, async_op=dist.get_rank() == 0)
            if work is not None:
                work.wait()
            assert torch.all(x == 3)

    run(3, body)


def test_a_started_operation_needs_nobody_to_wait():
    def body():
        x = torch.ones(2_000_000)
        work = dist.all_reduce(x, async_op=True)
        # Only polls: each rank's helper thread makes the progress.
        while not work.is_completed():
            pass
        assert torch.all(x == 2)

    run(2, body)


@pytest.mark.parametrize("name", ["all_reduce", "recv"])
def test_polls_end_with_the_time_out(name):
    def body():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 1:
            # Waits for rank 0's data in vain, longer than rank 0 does.
            with pytest.raises(kolo.torch.Aborted, match="not finished after 1.0 s"):
                dist.recv(torch.zeros(1), 0, tag=9)
            store.set("over", "")
            return
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True) if name == "all_reduce" else dist.irecv(x, 1)
        began = time.monotonic()
        while not work.is_completed():
            assert time.monotonic() < began + 20
        assert not work.is_success() and work.is_completed()
        error = work.exception()
        assert isinstance(error, kolo.torch.Timeout) and "not finished after 1.0 s" in str(error), error
        with pytest.raises(kolo.torch.Timeout):
            work.wait()
        store.get("over")

    run(2, body, end=False)


class Operation:
    """Stands in for an operation that is over when the test says so."""

    def __init__(self):
        self.over, self.ended_after = False, None

    def done(self):
        return self.over

    def time_out(self, seconds):
        if not self.over:
            self.over, self.ended_after = True, seconds

    def exception(self):
        return None


@pytest.fixture
def clock(monkeypatch):
    """The time that works see."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("kolo.torch.work.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def a_work(kind, operations):
    added = []
    engine = SimpleNamespace(sequence=1, seconds=10.0, completion=SimpleNamespace(add=lambda *future: added.append(future)))
    if kind == "one call":
        return KoloWork(engine, tuple(operations), [], None, engine.seconds)
    return Several(engine, [KoloWork(engine, (operation,), [], None, engine.seconds) for operation in operations], [])


@pytest.mark.parametrize("kind", ["one call", "coalesced"])
def test_the_limits_of_all_operations_count_from_one_poll(kind, clock):
    first, second = Operation(), Operation()
    work = a_work(kind, [first, second])
    assert not work.is_completed()
    clock.now += 9
    first.over = True
    assert not work.is_completed()
    clock.now += 1
    assert work.is_completed()
    assert first.ended_after is None and second.ended_after == 10


@pytest.mark.parametrize("kind", ["one call", "coalesced"])
def test_only_is_completed_counts_as_a_poll(kind, clock):
    operation = Operation()
    work = a_work(kind, [operation])
    assert not work.is_success() and not work.get_future().done()
    clock.now += 20
    assert not work.is_completed()
    clock.now += 20
    assert not work.is_success() and not work.get_future().done()
    assert operation.ended_after is None
    assert work.is_completed() and operation.ended_after == 10


@pytest.mark.parametrize("ranks", [1, 2])
def test_futures(ranks):
    def body():
        n = dist.get_world_size()
        x = torch.ones(100_000)
        future = dist.all_reduce(x, async_op=True).get_future()
        doubled = future.then(lambda over: over.value()[0] * 2)
        assert torch.all(doubled.wait() == 2 * n)
        assert future.wait()[0] is x
        y = torch.ones(3, 4).t()
        work = dist.all_reduce(y, async_op=True)
        seen = threading.Event()
        work.get_future().add_done_callback(lambda _: seen.set())
        assert torch.all(work.get_future().wait()[0] == n)
        assert seen.wait(10)
        futures = [dist.all_reduce(torch.ones(1000), async_op=True).get_future() for _ in range(20)]
        for future in reversed(futures):
            assert torch.all(future.wait()[0] == n)
        assert torch.futures.collect_all(futures).wait()
        # Operations that block anyway have futures too.
        out = torch.empty(2 * n)
        work = dist.all_to_all_single(out, torch.ones(2 * n), [2] * n, [2] * n, async_op=True)
        assert work.get_future().wait()[0] is out

    run(ranks, body)


@pytest.mark.parametrize("first", ["future", "poll", "wait"])
def test_a_failure_to_copy_the_results_back_stays(first):
    def body():
        def copy_back(tensor, room):
            raise RuntimeError("the copy failed")

        kolo.torch.tensors.copy_back = copy_back
        # A contiguous copy of it is summed.
        x = torch.ones(8)[::2]
        work = dist.all_reduce(x, async_op=True)
        if first == "future":
            # A thread waits for the operation, and only then is the future complete.
            with pytest.raises(RuntimeError, match="the copy failed"):
                work.get_future().wait()
        elif first == "poll":
            while not work.is_completed():
                pass
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the copy failed"):
                work.wait()
        assert not work.is_success() and isinstance(work.exception(), RuntimeError)
        with pytest.raises(RuntimeError, match="the copy failed"):
            work.get_future().wait()
        # The communicator is not affected.
        dist.all_reduce(torch.ones(3))

    run(2, body)


def test_a_late_message_holds_up_no_other_future():
    def body():
        store = dist.distributed_c10d._get_default_store()
        for together in (False, True):
            x = torch.zeros(1)
            if dist.get_rank() == 0:
                receive = dist.P2POp(dist.irecv, x, 1)
                work = dist.batch_isend_irecv([receive])[0] if together else dist.irecv(x, 1)
                received = work.get_future()
                summed = dist.all_reduce(torch.ones(3), async_op=True).get_future()
                store.set(f"asked {together}", "")
                # The other rank sends only after it has received this.
                summed.then(lambda _: dist.send(torch.ones(1), 1)).wait()
                assert torch.all(received.wait()[0] == 2)
            else:
                store.get(f"asked {together}")
                dist.all_reduce(torch.ones(3))
                dist.recv(x, 0)
                dist.send(x * 2, 0)

    run(2, body)


def test_works_may_be_dropped():
    def body():
        for _ in range(100):
            dist.all_reduce(torch.ones(10_000), async_op=True)
        dist.barrier(async_op=True).wait()

    run(2, body)


def test_destroying_with_works_outstanding():
    def body():
        x = torch.ones(1_000_000)
        works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
        futures = [work.get_future() for work in works[:2]]
        dist.destroy_process_group()
        assert all(future.done() for future in futures)

    run(2, body, end=False)


def test_destroying_with_a_sparse_all_reduce_outstanding():
    def body():
        me = dist.get_rank()
        x = torch.sparse_coo_tensor([[me]], [2.0], (2,))
        work = dist.all_reduce(x, async_op=True)
        if me == 1:
            assert work.wait() and x.to_dense().tolist() == [2.0, 2.0]
        dist.destroy_process_group()

    run(2, body, end=False)


def test_the_parts_of_a_call_share_its_limit(monkeypatch):
    clock, given = [0.0], []
    monkeypatch.setattr("kolo.torch.work.time.monotonic", lambda: clock[0])

    def wait(seconds):
        given.append(seconds)
        clock[0] += 3

    parts = [SimpleNamespace(wait=wait) for _ in range(3)]
    engine = SimpleNamespace(sequence=1, seconds=8.0)
    KoloWork(engine, tuple(parts), [], None, 8.0).wait()
    assert given == [8, 5, 2]
    given.clear()
    Several(engine, [KoloWork(engine, (part,), [], None, 8.0) for part in parts], []).wait(timedelta(seconds=7))
    assert given == [7, 4, 1]


def test_profiler_events():
    def body():
        with torch.profiler.profile() as profile:
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3), async_op=True).wait()
        names = [event.name for event in profile.events()]
        assert names.count("kolo:all_reduce") == 2

    run(2, body)
