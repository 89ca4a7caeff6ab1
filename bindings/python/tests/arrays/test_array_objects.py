"""Python objects, user-defined operators, and arrays that are not contiguous."""

import threading

import numpy as np
import pytest
from array_ranks import run

import kolo

#: Short and long objects; a long one takes a second message.
OBJECTS = [None, {"epoch": 3, "loss": [0.5, 0.25]}, "x" * 5000, b"", np.arange(700), (1, frozenset("ab"))]


def same(a, b):
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_objects_of_collectives(ranks):
    def body(comm):
        me = comm.rank
        for root in range(ranks):
            for obj in OBJECTS:
                assert same(comm.broadcast_object(obj if me == root else "not looked at", root), obj)
            gathered = comm.gather_object([me, "y" * 3000 * me], root)
            assert gathered == ([[r, "y" * 3000 * r] for r in range(ranks)] if me == root else None)
            own = comm.scatter_object([OBJECTS[2] * r for r in range(ranks)] if me == root else None, root)
            assert own == OBJECTS[2] * me
        assert comm.all_gather_object({me: "z" * (me * 2000)}) == [{r: "z" * (r * 2000)} for r in range(ranks)]
        assert comm.all_to_all_object([(me, to, "w" * to) for to in range(ranks)]) == [(r, me, "w" * me) for r in range(ranks)]
        assert comm.all_reduce_object(f"<{me}>") == "".join(f"<{r}>" for r in range(ranks))
        assert comm.all_reduce_object(me, max) == ranks - 1

    run(ranks, body)


def test_objects_of_messages():
    def body(comm):
        if comm.rank == 0:
            seen = [comm.recv_object_from(tag=7) for _ in range(4)]
            assert sorted(sender for _, sender in seen) == [1, 1, 2, 2]
            for sender in (1, 2):
                # They arrive in the order sent, whether long or short.
                assert [obj for obj, of in seen if of == sender] == ["a" * 5000 * sender, sender]
            assert comm.recv_object(2, tag=1) == "other tag"
        else:
            if comm.rank == 2:
                comm.send_object("other tag", 0, tag=1)
            comm.send_object("a" * 5000 * comm.rank, 0, tag=7)
            comm.send_object(comm.rank, 0, tag=7)

    run(3, body)


def test_an_array_is_no_part_of_an_object():
    def body(comm):
        if comm.rank == 0:
            comm.send_start(np.arange(3.0), 1)
            comm.send_object("object", 1)
        else:
            assert comm.recv_object() == "object"
            room = np.zeros(3)
            assert comm.recv(room) == 0 and room[2] == 2

    run(2, body)


def test_wrong_objects():
    def body(comm):
        with pytest.raises(kolo.Usage, match="3 objects given, but one per rank is needed: 2"):
            comm.all_to_all_object([1, 2, 3])
        with pytest.raises(kolo.Usage, match="no objects given"):
            comm.scatter_object(None, comm.rank)
        with pytest.raises(kolo.Usage, match="below 2\\^30"):
            comm.send_object(1, 1 - comm.rank, tag=1 << 30)
        with pytest.raises((TypeError, AttributeError), match="pickle"):
            comm.all_gather_object(threading.Lock())
        # The failed call sent nothing.
        assert comm.all_gather_object(comm.rank) == [0, 1]

    run(2, body)


def affine(a, b):
    """Composes functions x -> k x + d, first a, then b: associative, but not commutative."""
    made = np.empty_like(a)
    made["k"], made["d"] = a["k"] * b["k"], b["k"] * a["d"] + b["d"]
    return made


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 5, 9001])
def test_operators(ranks, length):
    def body(comm):
        me = comm.rank
        kind = np.dtype([("k", "i8"), ("d", "i8")])

        def mine(rank):
            values = np.empty(length, kind)
            values["k"], values["d"] = np.arange(length) % 3 + 1, rank + 1
            return values

        def expected(until):
            whole = mine(0)
            for rank in range(1, until):
                whole = affine(whole, mine(rank))
            return whole

        x = mine(me)
        assert comm.all_reduce(x, affine) is x and np.array_equal(x, expected(ranks))
        out = np.zeros(length, kind)
        assert comm.reduce(mine(me), affine, ranks - 1, out=out) is out
        assert np.array_equal(out, expected(ranks) if me == ranks - 1 else np.zeros(length, kind))
        assert np.array_equal(comm.scan(mine(me), affine), expected(me + 1))
        before = comm.exscan(mine(me), affine)
        assert np.array_equal(before, mine(0) if me == 0 else expected(me))
        whole = np.concatenate([mine(me)] * ranks)
        assert np.array_equal(comm.reduce_scatter(whole, np.zeros(length, kind), affine), expected(ranks))
        y = np.full((3, 4), 3.0 + me, order="F")
        z = comm.all_reduce(y, np.hypot, out=np.empty((3, 4)))
        assert np.allclose(z, np.sqrt(sum((3.0 + r) ** 2 for r in range(ranks))))

    run(ranks, body)


def test_operators_that_fail():
    def body(comm):
        with pytest.raises(kolo.Usage, match="blocking all_reduce"):
            comm.all_reduce_start(np.zeros(3), np.hypot)
        with pytest.raises(kolo.Usage, match="combine NumPy arrays"):
            comm.all_reduce(bytearray(3), np.hypot)
        with pytest.raises(kolo.Usage, match="out has 2 of"):
            comm.all_reduce(np.zeros(3), np.hypot, out=np.zeros(2))

        def breaks(a, b):
            raise ArithmeticError("no such number")

        # Long enough for each rank to combine a part; so the other rank waits for the part of rank 0.
        with pytest.raises(ArithmeticError if comm.rank == 0 else kolo.Aborted, match="no such number"):
            comm.all_reduce(np.ones(100_000), breaks if comm.rank == 0 else np.hypot)

    run(2, body)


@pytest.mark.parametrize("length", [64, 40_000])
@pytest.mark.parametrize(
    "kinds",
    [
        ("i8", "f8"),
        ("u1", "i1"),
        ("c8", "i8"),
        ("c8", "M8[s]"),
        (">f8", "f8"),
        (">f8", ">i8"),
        ([("a", "i4"), ("b", "i4")], [("a", "i4"), ("c", "i4")]),
    ],
    ids=str,
)
def test_operators_on_types_that_differ(kinds, length):
    def body(comm, call):
        dtype = np.dtype(kinds[comm.rank])
        x = np.zeros(length, dtype)
        calls = {
            "all_reduce": lambda: comm.all_reduce(x, pick),
            "reduce": lambda: comm.reduce(x, pick),
            "scan": lambda: comm.scan(x, pick),
            "exscan": lambda: comm.exscan(x, pick),
            "reduce_scatter": lambda: comm.reduce_scatter(x, np.zeros(length // 2, dtype), pick),
        }
        with pytest.raises(kolo.Mismatch) as caught:
            calls[call]()
            # A rank that only sends may be through before the other one sees what it has sent.
            comm.barrier()
        assert caught.value.peer == 1 - comm.rank

    def pick(a, b):
        return a

    for call in ("all_reduce", "reduce", "scan", "exscan", "reduce_scatter"):
        run(2, body, call)


def test_operators_on_parts_of_arrays():
    def body(comm):
        for length in (9, 90_000):
            for kind in ("f8", "c8", [("k", "i8"), ("d", "i8")]):
                values = (np.arange(2 * length) + comm.rank).astype(kind)
                x = values[::2]
                assert comm.all_reduce(x, lambda a, b: b) is x
                assert np.array_equal(values[::2], (np.arange(2 * length) + 1).astype(kind)[::2])
                assert np.array_equal(values[1::2], (np.arange(2 * length) + comm.rank).astype(kind)[1::2])

    run(2, body)


def test_operator_of_another_shape():
    def body(comm):
        # A rank whose operator has not run yet hears of the other's error.
        errors = (kolo.Usage, kolo.Aborted)
        with pytest.raises(errors, match=r"the operator made \(\) of two arrays of shape \(4,\)"):
            comm.all_reduce(np.ones(4), np.dot)

    run(2, body)


def test_arrays_in_any_order():
    def body(comm):
        me, ranks = comm.rank, comm.world_size
        # Ranks may differ in memory order, by rows or by columns; the same index means the same element.
        x = np.arange(12.0).reshape(3, 4) + me
        x = np.asfortranarray(x) if me else x
        assert comm.all_reduce(x) is x
        assert np.array_equal(x, ranks * np.arange(12.0).reshape(3, 4) + ranks * (ranks - 1) / 2)
        board = np.zeros((6, 8), np.int32)
        every_other = board[::2, 1::2]
        comm.broadcast(every_other if me else np.arange(12, dtype=np.int32).reshape(3, 4))
        if me:
            assert np.array_equal(every_other, np.arange(12).reshape(3, 4))
            assert board[1::2].sum() == 0 and board[:, ::2].sum() == 0
        backwards = np.arange(5)[::-1]
        out = np.zeros((5, ranks), dtype=np.int64).T
        assert comm.all_gather(backwards, out) is out
        assert np.array_equal(out, np.stack([backwards] * ranks))
        # The result is copied into the array when the work is waited for.
        work = comm.all_reduce_start(board[:, 0])
        assert isinstance(work, kolo.Work)
        assert np.shares_memory(work.wait(), board) and board[0, 0] == 0
        # A failure to copy is that of every wait until it has succeeded.
        before = board[:, 2].copy()
        late = board[:, 2]
        work = comm.all_reduce_start(late)
        late.flags.writeable = False
        for _ in range(2):
            with pytest.raises(ValueError, match="read-only"):
                work.wait()
        late.flags.writeable = True
        assert np.array_equal(work.wait(), before * ranks)
        column = np.zeros((4, 3))
        if me == 0:
            comm.send(np.arange(8.0)[::2], 1, tag=5)
            comm.send_start(np.arange(8.0)[::2], 1).wait()
        elif me == 1:
            assert comm.recv(column[:, 1], 0, tag=5) == 0
            work = comm.recv_start(column[:, 2])
            work.wait()
            assert work.source == 0
            assert np.array_equal(column, [[0, 2 * i, 2 * i] for i in range(4)])
        counts = [r + 1 for r in range(ranks)]
        wide = np.zeros((sum(counts), 2))
        comm.all_gather_v(np.full(counts[me], me + 1.0), wide[:, 0], counts)
        assert np.array_equal(wide[:, 0], np.repeat(np.arange(1.0, ranks + 1), counts)) and wide[:, 1].sum() == 0
        read_only = np.broadcast_to(np.float64(me), (3, 3))
        with pytest.raises(kolo.Usage, match="read-only"):
            comm.all_reduce(read_only)
        assert comm.all_reduce(read_only, out=np.empty((3, 3)))[1, 1] == ranks * (ranks - 1) / 2

    run(3, body)


def test_tags_and_any_source_everywhere():
    def body(comm):
        me, ranks = comm.rank, comm.world_size
        right, left = (me + 1) % ranks, (me - 1) % ranks
        one, two = np.zeros(1), np.zeros(1)
        comm.batch([("send", np.array([1.0 + me]), right, 1), ("send", np.array([2.0 + me]), right, 2), ("recv", two, left, 2), ("recv", one, None, 1)])
        assert (one[0], two[0]) == (1.0 + left, 2.0 + left)
        assert comm.send_recv(np.array([float(me)]), right, one, left, 9)[0] == left
        assert comm.send_recv(np.array([float(me)]), right, one, None, tag=9)[0] == left

    run(3, body)


def test_wait_all():
    def body(comm):
        outs = [np.full(10, float(i)) for i in range(3)]
        works = [comm.all_reduce_start(out) for out in outs]
        waited = kolo.wait_all(works, 30)
        assert all(a is b for a, b in zip(waited, outs)) and outs[2][0] == 4.0
        assert kolo.wait_all([]) == []

    run(2, body)


def test_dup():
    def body(comm):
        with comm.dup() as other:
            assert (other.rank, other.world_size) == (comm.rank, comm.world_size)
            # Calls on the two never match each other, in whatever order the ranks make them.
            mine, others = np.ones(4), np.full(4, 2.0)
            if comm.rank == 0:
                a, b = comm.all_reduce_start(mine), other.all_reduce_start(others)
            else:
                b, a = other.all_reduce_start(others), comm.all_reduce_start(mine)
            kolo.wait_all([a, b], 30)
            assert mine[0] == 2.0 and others[0] == 4.0
        comm.barrier()

    run(2, body)


def test_alloc():
    def body(comm):
        x = comm.alloc((1000, 100), np.float32)
        assert x.shape == (1000, 100) and x.dtype == np.float32 and not x.any()
        x += comm.rank + 1
        comm.all_reduce(x)
        assert np.all(x == 6)
        # A slice keeps the memory alive, and can be used as well.
        part = x[10:20]
        del x
        comm.all_reduce(part)
        assert np.all(part == 18)
        assert comm.alloc(5).dtype == np.float64 and comm.alloc(0, "int8").shape == (0,)
        with pytest.raises(kolo.Usage, match="asked for"):
            comm.alloc(10 + comm.rank)
        with pytest.raises(kolo.Usage, match="negative"):
            comm.alloc((-1, -2))
        comm.barrier()

    run(3, body)
