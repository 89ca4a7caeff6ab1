"""Arrays on a GPU, which here is a stand-in's: whoever reads or writes them with the processor dies.

The stand-in is that of the Rust tests; ``cargo test -p kolo-gdr`` builds it.
"""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
from array_ranks import run

import kolo

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[4] / "target"))
LIBRARY = TARGET / "debug" / "examples" / "libfake_libcuda.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")


class DeviceArray:
    """As CuPy's, with just what tests need."""

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
        # One rank on the host.
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
