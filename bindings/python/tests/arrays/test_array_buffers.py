"""Objects that lend their memory are used in place; those that cannot be are refused with a reason."""

import array

import numpy as np
import pytest
from array_ranks import run

import kolo


def test_buffers_of_all_kinds():
    def body(comm):
        for make in (
            lambda: array.array("d", [comm.rank + 1.0] * 4),
            lambda: memoryview(array.array("d", [comm.rank + 1.0] * 4)),
        ):
            buffer = make()
            comm.all_reduce(buffer)
            assert list(buffer) == [3.0] * 4
        text = bytearray(b"abc") if comm.rank == 0 else bytearray(3)
        comm.broadcast(text)
        assert text == b"abc"
        # Read-only memory can be an input.
        gathered = bytearray(6)
        comm.all_gather(b"xyz", gathered)
        assert gathered == b"xyzxyz"
        frozen = np.ones(3)
        frozen.flags.writeable = False
        out = np.empty(3)
        comm.all_reduce(frozen, out=out)
        assert np.all(out == 2)
        comm.all_reduce(array.array("f"))
        comm.all_reduce(np.empty((0, 3)))
        x = np.array(5.0)
        comm.all_reduce(x)
        assert x == 10

    run(2, body)


def test_dlpack():
    torch = pytest.importorskip("torch")

    def body(comm):
        x = torch.full((2, 3), comm.rank + 1.0, dtype=torch.bfloat16)
        comm.all_reduce(x)
        assert (x == 3).all()
        with pytest.raises(kolo.Usage, match="not contiguous"):
            comm.all_reduce(torch.ones(4, 4).t())
        comm.all_reduce(torch.ones(4, 1)[:, 0])
        comm.all_reduce(torch.empty(3, 0))
        comm.all_reduce(torch.empty(3, 0, 2).permute(2, 0, 1))

    run(2, body)


def test_views_of_negative_values():
    torch = pytest.importorskip("torch")

    def body(comm):
        # The second name is another object, so that the call takes the general way.
        for op in ("sum", other("sum")):
            for x in (torch._neg_view(torch.ones(3)), torch.ones(1, dtype=torch.complex64).conj().imag):
                with pytest.raises(kolo.Usage, match="resolve_neg"):
                    comm.all_reduce(x, op)
                out = comm.all_reduce(x.resolve_neg(), op, out=torch.zeros_like(x))
                assert (out == 2 * x).all()

    run(2, body)


def test_what_cannot_be_used_is_refused():
    def body(comm):
        def refused(match, call, kind=kolo.Usage):
            with pytest.raises(kind, match=match) as caught:
                call()
            assert isinstance(caught.value, (ValueError, NotImplementedError))

        refused("not contiguous", lambda: comm.all_reduce(memoryview(bytearray(9))[::2]))
        refused("read-only", lambda: comm.broadcast(b"abc"))
        frozen = np.ones(3)
        frozen.flags.writeable = False
        refused("read-only", lambda: comm.all_reduce(frozen))
        refused("byte order", lambda: comm.all_reduce(np.ones(3, ">f4")))
        refused("neither numbers nor bytes", lambda: comm.all_gather(np.array(["text"])))
        for kind in ("O", [("a", "i4"), ("b", "O")], [("a", [("b", "O")])]):
            refused("Python objects", lambda: comm.broadcast(np.zeros(2, kind)))
            refused("Python objects", lambda: comm.all_gather(np.zeros(2, kind)))
            refused("Python objects", lambda: comm.broadcast(memoryview(np.zeros(2, kind))))
        refused("nor the buffer protocol", lambda: comm.all_reduce([1, 2]))
        refused("unknown operator 'mean'", lambda: comm.all_reduce(np.ones(3), "mean"))
        refused("not defined for elements", lambda: comm.all_reduce(np.ones(3, "c8"), "prod"), kolo.Unsupported)
        refused("not defined for elements", lambda: comm.all_reduce(np.ones(3, "c8"), "max"), kolo.Unsupported)
        refused("bit_and is not defined for f64", lambda: comm.all_reduce(np.ones(3), "bit_and"))
        refused("must have 2469134 ", lambda: comm.all_gather(np.ones(1234567, np.int8), np.ones(5, np.int8)))
        refused("must have 6", lambda: comm.all_gather(np.ones(3), np.ones(5)))
        refused("must agree", lambda: comm.all_gather(np.ones(3), np.ones(6, "f4")))
        refused("must agree", lambda: comm.all_reduce(np.ones(3), out=np.ones(4)))
        refused("root 2 is out of range", lambda: comm.broadcast(np.ones(3), 2))
        refused("ranks count from 0", lambda: comm.broadcast(np.ones(3), -1))
        refused("one per rank is needed: 2", lambda: comm.all_gather_v(np.ones(3), np.ones(3), [3]))
        refused("rank 7 is out of range", lambda: comm.send(np.ones(3), 7))
        refused("overlap", lambda: overlapping(comm))
        # None of the refused calls sent anything: the communicator still works.
        x = np.ones(3)
        comm.all_reduce(x)
        assert np.all(x == 2)

    def overlapping(comm):
        x = np.ones(3)
        comm.all_gather_v(x[: 2 - comm.rank], x, [2, 1])

    run(2, body)


def test_closed_communicators():
    def body(comm):
        comm.close()
        comm.close()
        with pytest.raises(kolo.Usage, match="closed"):
            comm.barrier()

    run(2, body)


def other(name):
    """The same text as a different object, so that the call takes the general way."""
    return "".join(list(name))


def test_buffers_that_partly_overlap_are_refused():
    def body(comm):
        n = comm.world_size
        x = np.zeros(8 * n)
        counts = [4] * n
        for call in (
            lambda: comm.all_reduce(x[:-1], out=x[1:]),
            lambda: comm.all_reduce(x[:-1], other("sum"), out=x[1:]),
            lambda: comm.all_reduce_start(x[:-1], out=x[1:]),
            lambda: comm.scan(x[1:], out=x[:-1]),
            lambda: comm.all_gather(x[1:5], x[: 4 * n]),
            lambda: comm.all_gather_start(x[1:5], x[: 4 * n]),
            lambda: comm.reduce_scatter(x[: 4 * n], x[1:5]),
            lambda: comm.all_to_all(x[: 4 * n], x[1 : 4 * n + 1]),
            lambda: comm.all_gather_v(x[:4], x[: 4 * n], counts),
            lambda: comm.all_gather_v_start(x[:4], x[: 4 * n], counts),
        ):
            with pytest.raises(kolo.Usage, match="overlap"):
                call()
        assert not x.any()
        # Input and output may be the same memory, just not overlap in part; and the refused calls sent nothing.
        x[:] = comm.rank
        comm.all_reduce(x, out=x[:])
        own = x[4 * comm.rank : 4 * comm.rank + 4]
        comm.all_gather(own, x[: 4 * n])
        assert np.all(x == sum(range(n)))

    run(2, body)
