"""Read-only values are never changed in place: NumPy's scalars, arrays of libraries with immutable arrays, other read-only memory.

All of them can be read; so each can be the input of a call that has another output.
"""

import gc

import numpy as np
import pytest
from array_ranks import run
from dlpack_lender import Lender

import kolo


def refused(match, call):
    with pytest.raises(kolo.Usage, match=match):
        call()


SCALARS = [np.float64(3), np.float32(3), np.int64(3), np.int16(3), np.bool_(True), np.complex128(3), np.datetime64(3, "s")]


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_scalars_are_never_written(value):
    def body(comm):
        for call in (
            lambda: comm.all_reduce(value),
            lambda: comm.reduce(value),
            lambda: comm.broadcast(value),
            lambda: comm.scan(value),
            lambda: comm.exscan(value),
            lambda: comm.recv(value, 1 - comm.rank),
            lambda: comm.all_reduce_start(value),
            lambda: comm.reduce_start(value),
            lambda: comm.broadcast_start(value),
            lambda: comm.scan_start(value),
            lambda: comm.exscan_start(value),
            lambda: comm.recv_start(value, 1 - comm.rank),
            lambda: comm.all_reduce(np.asarray(value), out=value),
            lambda: comm.all_gather(np.asarray(value), value),
            lambda: comm.scatter(np.full(2, value), value),
            lambda: comm.send_recv(value, 1 - comm.rank, value, 1 - comm.rank),
            lambda: comm.batch([("recv", value, 1 - comm.rank)]),
        ):
            refused(rf"numpy\.{type(value).__name__}, a value.*numpy\.asarray", call)
        assert (comm.all_gather(value) == value).all()
        assert (comm.all_gather_start(value).wait() == value).all()
        # What the error suggests works.
        total = np.asarray(value)
        assert comm.broadcast(total) is total and total == value

    run(2, body)


def test_scalars_as_the_program_was_ported():
    def body(comm):
        part = np.arange(5.0) + comm.rank
        total = comm.all_reduce(np.asarray(part.sum()))
        assert total == 25.0
        out = np.empty(())
        comm.all_reduce(part.sum(), out=out)
        assert out == 25.0
        work = comm.send_start(part.sum(), 1 - comm.rank)
        x = np.empty(1)
        comm.recv(x, 1 - comm.rank)
        work.wait()
        assert x[0] == (15.0 if comm.rank == 0 else 10.0)
        refused(r"has type float; pass numpy\.array", lambda: comm.all_reduce(3.0))
        refused(r"has type int; pass numpy\.array", lambda: comm.send(3, 0))

    run(2, body)


def test_started_calls_keep_what_their_addresses_are_of():
    class Described:
        """Has an interface that owns the memory that it describes, like that of NumPy's scalars."""

        def __init__(self, value):
            self.value = value

        @property
        def __array_interface__(self):
            array = np.full(1000, self.value)
            return {**array.__array_interface__, "kept": array, "version": 3}

    def body(comm):
        peer = 1 - comm.rank
        for _ in range(20):
            work = comm.recv_start(Described(0.0), peer)
            gc.collect()
            # If the memory had been freed, one of these would get it.
            strangers = [np.zeros(1000) for _ in range(50)]
            comm.barrier()
            comm.send(np.full(1000, 77.0), peer)
            work.wait()
            assert not any(stranger.any() for stranger in strangers)

    run(2, body)


class Immutable(Lender):
    """Like JAX's arrays, which are recognised by their module."""


Immutable.__module__ = "jaxlib._jax"


class OfPyarrow(Lender):
    pass


OfPyarrow.__module__ = "pyarrow.lib"


def test_read_only_capsules_are_not_written():
    def body(comm):
        for make in (
            lambda: Lender([1.0], flags=1),
            lambda: Immutable([1.0]),
            lambda: OfPyarrow([1.0]),
        ):
            x = make()
            refused("read-only", lambda: comm.all_reduce(x))
            refused("read-only", lambda: comm.recv_start(x, 0))
            refused("read-only", lambda: comm.all_reduce(np.ones(1), out=x))
            assert x.values[0] == 1.0
            out = np.empty(1)
            assert comm.all_reduce(x, out=out)[0] == 2.0
        refused("copy", lambda: comm.all_reduce(Lender([1.0], flags=2)))
        refused("version 2", lambda: comm.all_reduce(Lender([1.0], flags=0, major=2)))
        refused("not export.*gradient", lambda: comm.all_reduce(Lender([1.0], problem=BufferError("needs a gradient"))))
        for writable in (Lender([1.0], flags=0), Lender([1.0])):
            comm.all_reduce(writable)
            assert writable.values[0] == 2.0

    run(2, body)


def test_elements_of_capsules_have_the_bytes_of_all_their_lanes():
    def body(comm):
        # Two numbers of 4 bits a byte, as torch has them; and a kind whose lanes are a type of Kolo's by chance.
        for kind, bytes in ((17, 4, 2), 1), ((0, 8, 4), 4):
            x = Lender([np.pi ** (comm.rank + 1)], flags=0, kind=kind)
            before, root = x.values.tobytes(), np.full(1, np.pi).tobytes()
            comm.broadcast(x)
            assert x.values.tobytes() == root[:bytes] + before[bytes:]
            with pytest.raises(kolo.Unsupported, match="not defined for elements"):
                comm.all_reduce(x)
        refused("elements of 4 bits", lambda: comm.broadcast(Lender([1.0], kind=(17, 4, 1))))

    run(2, body)


def test_immutable_interfaces_are_not_written():
    class Array:
        def __init__(self):
            self.array = np.ones(1)
            self.__cuda_array_interface__ = {**self.array.__array_interface__, "version": 2}

    Array.__module__ = "jaxlib._jax"

    def body(comm):
        x = Array()
        refused("immutable", lambda: comm.all_reduce(x))
        assert comm.all_reduce(x, out=np.empty(1))[0] == 2.0

    run(2, body)


def test_jax():
    jax = pytest.importorskip("jax")

    def body(comm):
        for dtype in ("float32", "bfloat16"):
            x = jax.numpy.full(3, 1 + comm.rank, dtype)
            refused("read-only|immutable", lambda: comm.all_reduce(x))
            assert (x == 1 + comm.rank).all()
        out = np.empty(3, np.float32)
        assert (comm.all_reduce(jax.numpy.full(3, 1 + comm.rank, "float32"), out=out) == 3).all()

    run(2, body)


def test_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")

    def body(comm):
        x = pyarrow.array([1.0, 2.0])
        refused("read-only", lambda: comm.all_reduce(x))
        assert x.to_pylist() == [1.0, 2.0]
        assert (comm.all_reduce(x, out=np.empty(2)) == [2, 4]).all()

    run(2, body)


def test_odd_types_are_moved_or_refused_by_name():
    def body(comm):
        when = np.array([10 + comm.rank], "M8[s]")
        assert (comm.all_gather(when).ravel() == np.array([10, 11], "M8[s]")).all()
        comm.broadcast(when, 1)
        assert when[0] == np.datetime64(11, "s")

        def unsupported(match, call):
            with pytest.raises(kolo.Unsupported, match=match):
                call()

        unsupported(r"'datetime64\[s\]'", lambda: comm.all_reduce(when))
        unsupported(r"'timedelta64\[ns\]'", lambda: comm.all_reduce(np.ones(1, "m8[ns]")))
        unsupported("'longdouble'", lambda: comm.all_reduce(np.ones(1, np.longdouble)))
        unsupported("'clongdouble'", lambda: comm.all_reduce(np.ones(1, np.clongdouble)))
        assert comm.all_gather(b"abcd").tobytes() == b"abcdabcd"
        assert comm.all_gather(bytearray(b"xy")).tobytes() == b"xyxy"
        refused("read-only", lambda: comm.broadcast(b"abcd"))
        refused("'float64', but out of 'float32'", lambda: comm.all_gather(np.ones(1), np.ones(2, np.float32)))

    run(2, body)


def test_interfaces_whose_data_is_a_buffer():
    class Picture:
        """Like an image of PIL."""

        def __init__(self, data):
            self.__array_interface__ = {"shape": (2, 2), "typestr": "|u1", "version": 3, "data": data}

    def body(comm):
        refused("read-only", lambda: comm.all_reduce(Picture(bytes(4))))
        gathered = np.empty(8, np.uint8)
        comm.all_gather(Picture(bytes([comm.rank] * 4)), gathered)
        assert gathered.tolist() == [0] * 4 + [1] * 4
        held = bytearray([1] * 4)
        comm.all_reduce(Picture(held))
        assert held == bytes([2] * 4)

    run(2, body)
