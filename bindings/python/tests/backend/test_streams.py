"""Tensors on GPUs, without a GPU: a stand-in for torch.cuda says which tensors are on a device and when their values are there.

What Kolo does with a device address is tested with a stand-in for the driver, as in ``test_array_gpu.py``.
"""

import contextlib
import ctypes
import os
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from group_ranks import join, run
from harness import forked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kolo.torch
from kolo.torch import streams

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[4] / "target"))
LIBRARY = TARGET / "debug" / "examples" / "libfake_libcuda.so"


class Event:
    """An event that the stream reaches when the test says so."""

    def __init__(self, reached):
        self.reached = reached
        self.waiters = []

    def synchronize(self):
        self.waiters.append(threading.current_thread().name)
        assert self.reached.wait(20)


class Device(streams.Cuda):
    """Treats tensors on the host as if they were on a device."""

    def __init__(self, is_here=lambda tensor: True):
        super().__init__()
        self.is_here = is_here
        self.reached = threading.Event()
        self.events, self.followed = [], []

    def available(self):
        return True

    def holds(self, tensor):
        return self.is_here(tensor)

    def takes(self, tensor):
        return True

    def mark(self, tensors):
        if not any(map(self.is_here, tensors)):
            return None
        self.events.append(Event(self.reached))
        return self.events[-1]

    def follow(self, event, tensors):
        self.followed.append(event)


@contextlib.contextmanager
def device(stand_in):
    before, streams.cuda = streams.cuda, stand_in
    try:
        yield stand_in
    finally:
        streams.cuda = before


def test_the_host_goes_on_and_calls_keep_their_order():
    def body(rank, ranks, folder):
        x, y = torch.zeros(1000), torch.ones(10)
        with device(Device(lambda tensor: tensor is x)) as stand_in:
            join(rank, ranks, folder)
            first = dist.all_reduce(x, async_op=True)
            # On the host's memory, so it need not wait for the device; but it must not match the first call of other ranks.
            second = dist.all_reduce(y, async_op=True)
            assert not first.is_completed() and not second.is_completed()
            x.fill_(rank + 1)  # what the kernel would do
            stand_in.reached.set()
            second.wait()
            first.wait()
            assert torch.all(x == 6) and torch.all(y == 3)
            # Now nothing is pending, and the calling thread itself starts a call on the host's memory.
            dist.all_reduce(y)
            assert torch.all(y == 9)
            dist.destroy_process_group()

    forked(3, body)


def test_ddp_stops_the_host_at_no_bucket():
    def body(rank, ranks, folder):
        def net():
            torch.manual_seed(1)
            return nn.Sequential(*[nn.Linear(30, 30) for _ in range(5)])

        def gradients(parallel):
            parallel(torch.full((4, 30), float(rank))).square().sum().backward()
            return torch.cat([p.grad.flatten() for p in parallel.parameters()])

        with device(Device()) as stand_in:
            stand_in.reached.set()
            join(rank, ranks, folder)
            parallel = DistributedDataParallel(net(), bucket_cap_mb=0.002)
            buckets = []

            def reach(state, bucket):
                future = dist.group.WORLD.allreduce([bucket.buffer().div_(ranks)]).get_future()
                buckets.append(bucket)
                if bucket.is_last():
                    stand_in.reached.set()
                return future.then(lambda over: over.value()[0])

            parallel.register_comm_hook(None, reach)
            for _ in range(2):  # after these steps the buckets no longer change
                gradients(parallel)
                parallel.zero_grad()
            buckets.clear()
            stand_in.events.clear()
            # The device does not reach any event until the backward pass has queued its last bucket.
            stand_in.reached.clear()
            got = gradients(parallel)
            assert len(buckets) > 2
            waiters = {name for event in stand_in.events for name in event.waiters}
            assert waiters and all(name.startswith("kolo-launch") for name in waiters), waiters
            gloo = dist.new_group(backend="gloo")
            want = gradients(DistributedDataParallel(net(), process_group=gloo))
            assert torch.allclose(got, want, atol=1e-5)
            dist.destroy_process_group()

    forked(2, body)


def test_waiting_makes_the_current_stream_wait_for_what_is_copied_back():
    def body(rank, ranks, folder):
        with device(Device()) as stand_in:
            stand_in.reached.set()
            join(rank, ranks, folder)
            x = torch.ones(4, 3).t()  # goes by way of a copy
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert torch.all(x == 2)
            [event] = stand_in.followed
            assert event is stand_in.events[-1], "it was marked after the copy"
            # Each further wait makes its own stream wait, too.
            work.wait()
            assert stand_in.followed == [event, event]
            dist.destroy_process_group()

    forked(2, body)


def test_the_values_of_small_tensors_are_joined_once_they_are_there(monkeypatch):
    """The device is of another vendor than Kolo knows, so its tensors go through the host."""
    other_device = pytest.importorskip("other_device", reason="this torch makes no devices in Python")

    class Foreign(Device):
        def takes(self, tensor):
            return tensor.is_cpu

        def room(self, tensor, shape):
            return torch.zeros(shape, dtype=tensor.dtype)

        def mark(self, tensors):
            event = super().mark(tensors)
            if event is not None:
                wait = event.synchronize
                event.synchronize = lambda: wait() or other_device.finish_copies()
            return event

    monkeypatch.setattr("kolo.torch.tensors._is_near", lambda tensor: True)
    monkeypatch.setattr(other_device, "pending", [])

    def body(rank, ranks, folder):
        other_device.install()
        with device(Foreign(lambda tensor: not tensor.is_cpu)) as stand_in:
            join(rank, ranks, folder)
            small = [torch.full((3,), rank + 1.0).to(other_device.NAME) for _ in range(2)]
            half = torch.full((4,), 0.5, dtype=torch.float16).to(other_device.NAME)
            work = dist.group.WORLD.allreduce_coalesced([*small, half])
            assert not work.is_completed()
            stand_in.reached.set()
            work.wait()
            assert [x.cpu().tolist() for x in small] == [[3.0] * 3] * 2
            assert half.cpu().tolist() == [1.0] * 4
            dist.destroy_process_group()

    forked(2, body)


def test_a_stream_that_stands_still_is_a_time_out():
    def body(rank, ranks, folder):
        with device(Device()):
            join(rank, ranks, folder)
            dist.group.WORLD.set_timeout(timedelta(seconds=1))
            with pytest.raises(kolo.torch.Timeout, match="the GPU stream has not reached this operation"):
                dist.all_reduce(torch.ones(3))
            work = dist.all_reduce(torch.ones(3), async_op=True)
            while not work.is_completed():
                pass
            assert isinstance(work.exception(), kolo.torch.Timeout) and not work.is_success()
            os._exit(0)

    forked(2, body, limit=20)


@pytest.mark.parametrize("way", ["polled", "waited"])
def test_an_operation_that_is_late_is_never_started(way):
    def body(rank, ranks, folder):
        with device(Device(lambda tensor: rank == 0)) as stand_in:
            join(rank, ranks, folder)
            store = dist.distributed_c10d._get_default_store()
            x = torch.ones(3)
            if rank == 1:
                with pytest.raises(kolo.torch.Aborted, match="the GPU stream has not reached this operation"):
                    dist.all_reduce(x)
                store.set("over", "")
                return
            dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
            work = dist.all_reduce(x, async_op=True)
            if way == "polled":
                while not work.is_completed():
                    pass
                assert isinstance(work.exception(), kolo.torch.Timeout)
            else:
                with pytest.raises(kolo.torch.Timeout):
                    work.wait()
            stand_in.reached.set()
            with pytest.raises(kolo.torch.Timeout):
                work.wait()
            assert not work.is_success()
            # Returns once the thread is through with all calls.
            dist.group.WORLD._engine.launcher.close(20)
            assert x.tolist() == [1.0] * 3
            store.get("over")

    forked(2, body)


def test_an_operation_that_cannot_be_started_ends_the_group():
    """Otherwise the other ranks would add this rank's next operation to their own first."""

    class Broken(Device):
        def mark(self, tensors):
            event = super().mark(tensors)
            if event is self.events[0]:

                def lost():
                    raise RuntimeError("the device is lost")

                event.synchronize = lost
            return event

    def body(rank, ranks, folder):
        with device(Broken() if rank == 0 else Device()) as stand_in:
            join(rank, ranks, folder)
            store = dist.distributed_c10d._get_default_store()
            x, y = torch.ones(3), torch.full((3,), 5.0)
            works = [dist.all_reduce(tensor, async_op=True) for tensor in (x, y)]
            stand_in.reached.set()
            first = RuntimeError if rank == 0 else kolo.torch.Aborted
            for kind, work in zip((first, kolo.torch.Aborted), works):
                with pytest.raises(kind, match="the device is lost"):
                    work.wait()
            store.set(f"over {rank}", "")
            store.wait([f"over {other}" for other in range(ranks)])

    forked(2, body)


def test_the_host_sleeps_while_it_waits_for_a_device(monkeypatch):
    made = []

    class Recorded:
        def __init__(self, blocking=False):
            made.append(blocking)

        def record(self, stream):
            pass

    monkeypatch.setattr("torch.cuda.Event", Recorded)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: None)
    streams.Cuda().mark([SimpleNamespace(is_cuda=True, device="cuda:0")])
    assert made == [True]


def on_a_gpu(driver, values):
    """A tensor on an address that the processor must not touch."""
    address = ctypes.c_uint64()
    data = values.numpy()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(data.nbytes)) == 0
    assert driver.cuMemcpyHtoD_v2(address, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)) == 0
    return torch.frombuffer((ctypes.c_byte * data.nbytes).from_address(address.value), dtype=values.dtype)


def host_copy(driver, tensor):
    out = torch.empty(tensor.shape, dtype=tensor.dtype).numpy()
    address = ctypes.c_uint64(tensor.data_ptr())
    assert driver.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), address, ctypes.c_size_t(out.nbytes)) == 0
    return torch.from_numpy(out)


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")
def test_device_addresses_are_passed_on(monkeypatch):
    monkeypatch.setenv("KOLO_CUDA_LIBRARY", str(LIBRARY))

    def body():
        driver = ctypes.CDLL(str(LIBRARY))
        driver.cuInit(0)
        me = dist.get_rank()
        x = on_a_gpu(driver, torch.full((70_001,), me + 1.0))
        comm = dist.group.WORLD._engine.comm
        assert comm.is_gpu_memory(x.data_ptr()) and not comm.is_gpu_memory(torch.ones(2).data_ptr())
        dist.all_reduce(x, async_op=True).wait()
        assert torch.all(host_copy(driver, x) == 3)
        y = on_a_gpu(driver, torch.zeros(70_001))
        works = [dist.isend(x, 1 - me), dist.irecv(y, 1 - me)]
        for work in works:
            work.wait()
        assert torch.all(host_copy(driver, y) == 3)

    run(2, body)
