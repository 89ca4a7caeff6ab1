"""Every operation on every type gives what NumPy computes."""

import numpy as np
import pytest
from array_ranks import run

import kolo

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
MOVED = [*INTEGERS, *FLOATS, "bool", "complex64", "complex128"]
RANKS = [1, 2, 3, 4]
LENGTHS = [0, 1, 5, 30_000]


def data(rank, length, dtype):
    """Small numbers, whose sums and products are exact in every type."""
    values = (np.arange(length) * 7 + rank * 3) % 4
    return values.astype(dtype)


REDUCE = {
    "sum": lambda parts: np.add.reduce(parts),
    "prod": lambda parts: np.multiply.reduce(parts),
    "min": lambda parts: np.minimum.reduce(parts),
    "max": lambda parts: np.maximum.reduce(parts),
    "bit_and": lambda parts: np.bitwise_and.reduce(parts),
    "bit_or": lambda parts: np.bitwise_or.reduce(parts),
    "bit_xor": lambda parts: np.bitwise_xor.reduce(parts),
}


@pytest.mark.parametrize("ranks", RANKS)
def test_all_reduce(ranks):
    def body(comm):
        for dtype in [*INTEGERS, *FLOATS, "bool"]:
            for op, expected in REDUCE.items():
                if op.startswith("bit") and dtype in FLOATS:
                    continue
                for length in LENGTHS:
                    parts = [data(r, length, dtype) for r in range(comm.world_size)]
                    want = expected(np.stack(parts)).astype(dtype)
                    got = parts[comm.rank].copy()
                    assert comm.all_reduce(got, op) is got
                    assert np.array_equal(got, want), (dtype, op, length)
                    out = np.empty_like(got)
                    comm.all_reduce(parts[comm.rank], op, out=out)
                    assert np.array_equal(out, want), (dtype, op, length)

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_average_factor_and_complex(ranks):
    def body(comm):
        x = np.full(9, comm.rank, np.float64)
        comm.all_reduce(x, "avg")
        assert np.allclose(x, (comm.world_size - 1) / 2)
        x = np.ones(9, np.float32)
        comm.all_reduce(x, "premul_sum", factor=comm.rank + 1)
        assert np.allclose(x, sum(range(1, comm.world_size + 1)))
        z = np.full(5, 1 + 2j * comm.rank, np.complex64)
        comm.all_reduce(z)
        assert np.allclose(z, sum(1 + 2j * r for r in range(comm.world_size)))

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_moves(ranks):
    def body(comm):
        rank, ranks = comm.rank, comm.world_size
        for dtype in MOVED:
            for length in LENGTHS:
                parts = [data(r, length, dtype) for r in range(ranks)]
                whole = np.concatenate(parts) if length else np.empty(0, dtype)
                assert np.array_equal(comm.all_gather(parts[rank]).ravel(), whole)
                for root in {0, ranks - 1}:
                    x = parts[rank].copy()
                    comm.broadcast(x, root)
                    assert np.array_equal(x, parts[root]), (dtype, length, root)
                    got = comm.gather(parts[rank], root=root)
                    assert (got is None) == (rank != root)
                    assert got is None or np.array_equal(got.ravel(), whole)
                    out = np.empty(length, dtype)
                    comm.scatter(whole if rank == root else None, out, root)
                    assert np.array_equal(out, parts[rank])
                sent = np.concatenate([data(rank * ranks + s, length, dtype) for s in range(ranks)])
                want = np.concatenate([data(r * ranks + rank, length, dtype) for r in range(ranks)])
                assert np.array_equal(comm.all_to_all(sent), want)

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_reduce_reduce_scatter_and_prefixes(ranks):
    def body(comm):
        rank, ranks = comm.rank, comm.world_size
        for dtype in ["int32", "float32", "float64", "uint8"]:
            for length in LENGTHS:
                parts = [data(r, length, dtype) for r in range(ranks)]
                out = np.full(length, 9, dtype)
                comm.reduce(parts[rank], "sum", ranks - 1, out=out)
                want = np.add.reduce(np.stack(parts)).astype(dtype) if rank == ranks - 1 else np.full(length, 9, dtype)
                assert np.array_equal(out, want)
                x = parts[rank].copy()
                comm.scan(x)
                assert np.array_equal(x, np.add.reduce(np.stack(parts[: rank + 1])).astype(dtype))
                x = parts[rank].copy()
                comm.exscan(x, "max")
                if rank:
                    assert np.array_equal(x, np.maximum.reduce(np.stack(parts[:rank])))
                blocks = [data(r, length * ranks, dtype) for r in range(ranks)]
                out = np.empty(length, dtype)
                comm.reduce_scatter(blocks[rank], out)
                want = np.add.reduce(np.stack(blocks)).astype(dtype)[rank * length : (rank + 1) * length]
                assert np.array_equal(out, want)

    run(ranks, body)


@pytest.mark.parametrize("started", [False, True])
def test_elements_are_never_divided(started):
    def body(comm):
        for x in (np.ones(3, "c8"), np.ones(3, "M8[s]"), np.ones(3, [("a", "i4"), ("b", "i4")]), np.ones(1, np.longdouble), np.ones(3)):
            for out in (None, np.zeros_like(x)):
                with pytest.raises(kolo.Usage, match=f"the input has {x.size} elements, but must have {x.size - 1}"):
                    comm.all_to_all_start(x, out) if started else comm.all_to_all(x, out)
            pair = np.concatenate([x[:1], np.zeros_like(x[:1])])
            got = comm.all_to_all_start(pair).wait() if started else comm.all_to_all(pair)
            assert np.array_equal(got, pair[[comm.rank] * 2]), x.dtype

    run(2, body)


@pytest.mark.parametrize("op", ["sum", np.add, "avg", "max"])
def test_a_factor_that_would_not_be_used_is_refused(op):
    def body(comm):
        x, whole = np.ones(2), np.ones(4)
        calls = [
            lambda: comm.all_reduce(x, op, factor=0.5),
            lambda: comm.reduce(x, op, factor=0.5),
            lambda: comm.reduce_scatter(whole, x, op, factor=0.5),
        ]
        if not callable(op):
            calls += [
                lambda: comm.all_reduce_start(x, op, factor=0.5),
                lambda: comm.reduce_start(x, op, factor=0.5),
                lambda: comm.reduce_scatter_start(whole, x, op, factor=0.5),
                lambda: comm.reduce_scatter_v(whole, x, [2, 2], op, factor=0.5),
                lambda: comm.reduce_scatter_v_start(whole, x, [2, 2], op, factor=0.5),
            ]
        for call in calls:
            with pytest.raises(kolo.Usage, match="factor is 0.5, but only the operator 'premul_sum'"):
                call()
        assert comm.all_reduce(x, op, factor=1.0) is x and comm.all_reduce(x, op, factor=1) is x

    run(2, body)


@pytest.mark.parametrize("length", [3, 100_000])
@pytest.mark.parametrize(("op", "started"), [("sum", False), ("sum", True), (np.add, False)])
def test_only_the_root_of_a_reduce_is_written(op, started, length):
    def body(comm):
        def reduce(*arguments, **named):
            return comm.reduce_start(*arguments, **named).wait() if started else comm.reduce(*arguments, **named)

        is_root = comm.rank == 0
        mine = np.ones(length) if is_root else np.frombuffer(np.ones(length).tobytes())
        assert reduce(mine, op) is mine and np.all(mine == (2 if is_root else 1))
        x, out = np.ones(length), np.zeros(length)
        out.flags.writeable = is_root
        assert reduce(x, op, out=out) is out
        assert np.all(out == (2 if is_root else 0)) and np.all(x == 1)
        apart = np.ones(2 * length)[::2]
        assert reduce(apart, op) is apart and np.all(apart == (2 if is_root else 1))
        if not callable(op):
            text = bytearray(b"abc") if is_root else b"\1\1\1"
            assert reduce(text, op) == (b"bcd" if is_root else b"\1\1\1")
        frozen = np.frombuffer(bytes(24))
        with pytest.raises(kolo.Usage, match="read-only"):
            reduce(frozen, op, comm.rank)
        comm.barrier()

    run(2, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_blocks(ranks):
    def body(comm):
        rank, ranks = comm.rank, comm.world_size
        counts = [r * 3 for r in range(ranks)]
        for dtype in ["float32", "int16", "complex64"]:
            parts = [data(r, counts[r], dtype) for r in range(ranks)]
            whole = np.concatenate(parts)
            out = np.empty(len(whole), dtype)
            comm.all_gather_v(parts[rank], out, counts)
            assert np.array_equal(out, whole)
            out = np.empty(len(whole), dtype) if rank == 0 else None
            comm.gather_v(parts[rank], out, counts, 0)
            assert rank or np.array_equal(out, whole)
            out = np.empty(counts[rank], dtype)
            comm.scatter_v(whole if rank == 0 else None, out, counts if rank == 0 else (), 0)
            assert np.array_equal(out, parts[rank])
            sends = [rank + s for s in range(ranks)]
            receives = [r + rank for r in range(ranks)]
            sent = np.full(sum(sends), rank, dtype)
            out = np.empty(sum(receives), dtype)
            comm.all_to_all_v(sent, sends, out, receives)
            assert np.array_equal(out, np.repeat(np.arange(ranks), receives).astype(dtype))
            out = np.empty(len(whole), dtype)
            assert np.array_equal(comm.all_gather_v_start(parts[rank], out, counts).wait(), whole)
            out = np.empty(sum(receives), dtype)
            comm.all_to_all_v_start(sent, sends, out, receives).wait()
            assert np.array_equal(out, np.repeat(np.arange(ranks), receives).astype(dtype))
            comm.gather_v_start(parts[rank], whole if rank == 0 else None, counts, 0).wait()
            out = np.empty(counts[rank], dtype)
            assert np.array_equal(comm.scatter_v_start(whole, out, counts, 0).wait(), parts[rank])
        ones = np.ones(sum(counts), np.float32)
        out = np.empty(counts[rank], np.float32)
        comm.reduce_scatter_v_start(ones, out, counts).wait()
        comm.reduce_scatter_v(ones, out, counts)
        assert np.array_equal(out, np.full(counts[rank], ranks, np.float32))

    run(ranks, body)


def test_counts_of_numpy_do_not_overflow():
    def body(comm):
        # Each block has 2^32 bytes, which is 0 in the arithmetic of the counts.
        counts = np.array([1 << 16] * 2, np.int32)
        empty = np.empty(0, "V65536")
        for given in (counts, list(counts)):
            with pytest.raises(kolo.Usage, match="0 elements, but must have 65536"):
                comm.all_gather_v(empty, empty, given)
        out = np.empty(5)
        comm.all_gather_v(np.full(comm.rank + 2, 1.0), out, np.array([2, 3], np.int32))
        assert np.all(out == 1)

    run(2, body)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_started_operations_overlap_and_keep_their_buffers(ranks, transport):
    def body(comm):
        n = comm.world_size
        works = [comm.all_reduce_start(np.full(100_000, i + comm.rank, np.float32)) for i in range(20)]
        for i, work in enumerate(works):
            assert np.all(work.wait() == sum(i + r for r in range(n)))
            assert work.done()
            work.wait()  # again
        assert np.all(comm.all_gather_start(np.full(3, comm.rank)).wait() == np.arange(n)[:, None])
        comm.barrier_start().wait()
        out = np.empty(2)
        assert np.all(comm.reduce_scatter_start(np.ones(2 * n), out).wait() == n)
        comm.broadcast_start(out, 1).wait()
        comm.all_to_all_start(np.arange(n)).wait()
        comm.reduce_start(out).wait()
        comm.scan_start(out).wait()
        comm.exscan_start(out).wait()
        comm.gather_start(out).wait()
        comm.scatter_start(np.ones(2 * n) if comm.rank == 0 else None, out).wait()
        # A work that nobody waits for still completes, and frees what it owns.
        comm.all_reduce_start(np.ones(1_000_000))
        comm.barrier_start().wait()

    run(ranks, body, settings={"transport": transport})


@pytest.mark.parametrize("ranks", [2, 4])
def test_messages(ranks):
    def body(comm):
        right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        got = np.empty(70_000)
        comm.send_recv(np.full(70_000, comm.rank, np.float64), right, got, left)
        assert np.all(got == left)
        if comm.rank == 0:
            comm.send(np.arange(3), 1)
        elif comm.rank == 1:
            received = np.empty(3, np.int64)
            assert comm.recv(received, 0) == 0
            assert np.array_equal(received, np.arange(3))

    run(ranks, body)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_tags_any_source_and_started_messages(transport):
    def body(comm):
        n = comm.world_size
        if comm.rank == 0:
            sources = set()
            for _ in range(n - 1):
                x = np.empty(2)
                source = comm.recv(x)
                assert np.all(x == source)
                sources.add(source)
            assert sources == set(range(1, n))
            # Received by tag, in another order than sent.
            late, early = np.empty(1), np.empty(1)
            comm.recv(late, 1, tag=2)
            comm.recv(early, 1, tag=1)
            assert (early[0], late[0]) == (1, 2)
            work = comm.recv_start(np.empty(3), tag=9)
            assert np.all(work.wait() == 7) and work.source == 2
        else:
            comm.send(np.full(2, float(comm.rank)), 0)
            if comm.rank == 1:
                works = [comm.send_start(np.array([float(tag)]), 0, tag) for tag in (1, 2)]
                for work in works:
                    work.wait()
            if comm.rank == 2:
                comm.send_start(np.full(3, 7.0), 0, 9)
        comm.barrier()

    run(3, body, settings={"transport": transport})


def test_bfloat16_by_its_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def body(comm):
        x = np.full(5, 1.5, ml_dtypes.bfloat16)
        comm.all_reduce(x)
        assert np.all(x.astype(np.float32) == 3)

    run(2, body)


def test_split_and_group():
    def body(comm):
        part = comm.split(comm.rank % 2, -comm.rank % 4)
        assert part.world_size == 2
        assert comm.split(None if comm.rank else 0) is None or comm.rank == 0
        x = np.full(3, comm.rank)
        part.all_reduce(x)
        assert np.all(x == (2 if comm.rank % 2 == 0 else 4))
        part.close()
        if comm.rank in (1, 3):
            group = comm.group([3, 1])
            assert group.rank == (0 if comm.rank == 3 else 1)
            x = np.full(3, comm.rank)
            group.broadcast(x, 0)
            assert np.all(x == 3)

    run(4, body)


def test_keys_of_splits_are_of_either_sign():
    def body(comm):
        part = comm.split(0, key=-comm.rank)
        assert part.rank == comm.world_size - 1 - comm.rank
        part = comm.split(0, key=[2**63 - 1, -(2**63), np.int64(-1)][comm.rank])
        assert part.rank == [2, 0, 1][comm.rank]

    run(3, body)


@pytest.mark.parametrize(
    "color, key, match",
    [
        ("red", 0, "color is 'red'"),
        (0, 1.5, "key 1.5"),
        (0, None, "key None"),
        (-1, 0, "color is -1"),
        (2**32, 0, "color is 4294967296"),
        (0, 2**63, "64 bits"),
    ],
)
def test_a_wrong_split_of_one_rank_raises_on_all(color, key, match):
    def body(comm):
        given = (color, key) if comm.rank == 1 else (0, 0)
        with pytest.raises(kolo.Usage, match=f"rank 1 cannot take part: .*{match}"):
            comm.split(*given)
        # Later splits still match on all ranks.
        part = comm.split(comm.rank % 2)
        assert part.world_size == (2 if comm.rank != 1 else 1)
        comm.barrier()

    # The limit is far below the 60 s that the other ranks would wait.
    run(3, body, limit=20)


@pytest.mark.parametrize("value", [-1, 2**40, 2**70])
def test_numbers_out_of_range_name_the_rank_and_the_operation(value):
    def body(comm):
        buffer = np.zeros(4)
        calls = {
            "gather": lambda: comm.gather_v(buffer, buffer, [4], root=value),
            "scatter": lambda: comm.scatter_v(buffer, buffer, [4], root=value),
            "all_gather": lambda: comm.all_gather_v(buffer, buffer, [value if value < 0 else 2**70]),
            "send": lambda: comm.send(buffer, value),
            "receive": lambda: comm.recv(buffer, 0, tag=value),
            "group": lambda: comm.group([value]),
            "explain": lambda: comm.explain("broadcast", 8, root=value),
        }
        for operation, call in calls.items():
            with pytest.raises(kolo.Usage, match=f"^rank 0, {operation}: ") as caught:
                call()
            assert (caught.value.rank, caught.value.operation) == (0, operation)

    run(1, body)


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_explains_every_collective(ranks):
    def body(comm):
        for collective in kolo._kolo.COLLECTIVES:
            for count in (0, 1, 5, 1 << 20, 1 << 40):
                for root in range(ranks):
                    text = comm.explain(collective, count, root=root)
                    assert text == comm.broadcast_object(text, root), (collective, count, root)

    run(ranks, body)
