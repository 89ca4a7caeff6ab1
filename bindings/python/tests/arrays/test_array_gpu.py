"""Arrays on a GPU, for which a stand-in of the driver serves: a process that reads or writes them with the processor dies.

The Rust tests use the same stand-in; ``cargo test -p kolo-gdr`` builds it.
"""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from array_ranks import run
from dlpack_lender import Lender

import kolo

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[4] / "target"))
LIBRARY = TARGET / "debug" / "examples" / "libfake_libcuda.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


class DeviceArray:
    """An array like CuPy's, with just what tests need."""

    def __init__(self, values):
        values = np.ascontiguousarray(values)
        self.driver = ctypes.CDLL(str(LIBRARY))
        self.driver.cuInit(0)
        address = ctypes.c_uint64()
        assert self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(values.nbytes)) == 0
        self.like, self.address = values, address
        data = ctypes.c_void_p(values.ctypes.data)
        assert self.driver.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(values.nbytes)) == 0
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (address.value, False),
            "strides": None,
            "version": 3,
        }

    def get(self):
        out = np.empty_like(self.like)
        data = ctypes.c_void_p(out.ctypes.data)
        assert self.driver.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(out.nbytes)) == 0
        return out


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_arrays_on_a_gpu(transport):
    def body(comm):
        ranks = comm.world_size
        x = DeviceArray(np.full(70_001, comm.rank + 1, np.float32))
        comm.all_reduce(x)
        assert (x.get() == 6).all()
        # One rank passes an array on the host.
        mine = np.full(1000, comm.rank, np.int64)
        out = DeviceArray(np.zeros((ranks, 1000), np.int64))
        comm.all_gather(mine if comm.rank == 1 else DeviceArray(mine), out)
        assert (out.get() == np.arange(ranks)[:, None]).all()
        work = comm.broadcast_start(x if comm.rank == 0 else np.empty(70_001, np.float32), 0)
        found = work.wait()
        assert ((x.get() if comm.rank == 0 else found) == 6).all()
        right, left = (comm.rank + 1) % ranks, (comm.rank - 1) % ranks
        y = DeviceArray(np.zeros(1000, np.int64))
        comm.send_recv(DeviceArray(mine), right, y, left)
        assert (y.get() == left).all()
        with pytest.raises(kolo.Usage, match="out must be given"):
            comm.all_gather(x)

    run(3, body, settings={"transport": transport, "cuda_library": str(LIBRARY)})


class Streaming(DeviceArray):
    """An array that is passed while the copy of its values is still pending on a stream."""

    def __init__(self, values, stream=None):
        super().__init__(np.zeros_like(values))
        self.source = DeviceArray(values)
        if stream is None:
            made, context = ctypes.c_size_t(), ctypes.c_size_t()
            self.driver.cuCtxPushCurrent_v2(self.context())
            assert self.driver.cuStreamCreate(ctypes.byref(made), 0) == 0
            self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))
            stream = made.value
        self.stream = stream

    def context(self):
        context = ctypes.c_size_t()
        device = ctypes.c_int()
        assert self.driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        return context

    def queue(self, stream):
        """Queues the copy that brings the values."""
        context = ctypes.c_size_t()
        self.driver.cuCtxPushCurrent_v2(self.context())
        count = ctypes.c_size_t(self.like.nbytes)
        assert self.driver.cuMemcpyAsync(self.address, self.source.address, count, ctypes.c_size_t(stream)) == 0
        self.driver.cuCtxPopCurrent_v2(ctypes.byref(context))


class Interface(Streaming):
    """Like CuPy's arrays: the interface names the stream."""

    def __init__(self, values, stream=None):
        super().__init__(values, stream)
        self.__cuda_array_interface__ = {**self.__cuda_array_interface__, "stream": self.stream}
        self.queue(self.stream)


class Capsule(Streaming):
    """Like torch's tensors: the stream that the reader names waits for the array's own."""

    def __init__(self, values, flags=None):
        super().__init__(values, 1)
        del self.__cuda_array_interface__
        self.lender = Lender(values, flags=flags, device=2, address=self.address.value)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, **newer):
        capsule = self.lender.__dlpack__(stream=stream, **newer)
        assert stream == 1, "the consumer's stream, by the protocol"
        self.queue(stream)
        return capsule


class Both(Capsule):
    """Like torch's tensors too: an interface from before streams had a place there, beside DLPack."""

    def __init__(self, values):
        super().__init__(values)
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (self.address.value, False),
            "strides": None,
            "version": 2,
        }


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "make",
    [Interface, lambda values: Interface(values, 1), lambda values: Interface(values, 2), Capsule, lambda values: Capsule(values, 0), Both],
    ids=["interface", "legacy", "per_thread", "capsule", "versioned", "both"],
)
def test_calls_come_after_what_streams_write(make, transport):
    def body(comm):
        ones = np.ones(5000)
        x = make(ones)
        comm.all_reduce(x)
        assert (x.get() == 2).all()
        y = make(ones * (comm.rank + 1))
        out = np.empty((2, 5000))
        comm.all_gather_start(y, out).wait()
        assert (out[0] == 1).all() and (out[1] == 2).all()
        z = make(ones * 3)
        out = np.empty(5000)
        comm.send_recv(z, 1 - comm.rank, out, 1 - comm.rank)
        assert (out == 3).all()
        # Writes queued on the stream earlier do not overwrite the result.
        late = make(ones * 9)
        comm.broadcast(late if comm.rank else ones * 4, 0)
        assert comm.rank == 0 or (late.get() == 4).all()

    run(2, body, settings={"transport": transport, "cuda_library": str(LIBRARY)})


def test_stream_zero_is_refused():
    def body(comm):
        x = DeviceArray(np.ones(3))
        x.__cuda_array_interface__["stream"] = 0
        with pytest.raises(kolo.Usage, match="stream 0"):
            comm.all_reduce(x)

    run(1, body, settings={"cuda_library": str(LIBRARY)})
