"""Every operation on every type gives what torch computes on one rank."""

import pytest
import torch
import torch.distributed as dist
from group_ranks import run
from torch.distributed import ReduceOp

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
WIDE = [torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [*INTEGERS, *WIDE, *FLOATS, *EIGHTS, *COMPLEX, torch.bool]
RANKS = [1, 2, 3, 4]


def data(rank, shape, dtype):
    """Small numbers, whose sums and products are exact in every type."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count) * 7 + rank * 3) % 3
    return values.to(dtype).reshape(shape)


def everybody(shape, dtype):
    return [data(r, shape, dtype) for r in range(dist.get_world_size())]


def same(a, b):
    if a.dtype in EIGHTS or a.dtype in WIDE:
        a, b = a.view(torch.uint8) if a.dim() else a, b.view(torch.uint8) if b.dim() else b
    return torch.equal(a, b)


REDUCE = {
    ReduceOp.SUM: lambda a, b: a + b,
    ReduceOp.PRODUCT: lambda a, b: a * b,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def reduced(parts, op):
    dtype = parts[0].dtype
    wide = torch.int64 if dtype in WIDE else torch.float32 if dtype in EIGHTS else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = REDUCE[op](total, part.to(wide))
    return total.to(dtype)


def operators(dtype):
    ops = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    return ops if dtype.is_floating_point else [*ops, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]


@pytest.mark.parametrize("ranks", RANKS)
def test_all_reduce_and_reduce(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for dtype in [*INTEGERS, *WIDE, *FLOATS, *EIGHTS]:
            for op in operators(dtype):
                for shape in [(0,), (), (3, 5), (5000,)]:
                    parts = everybody(shape, dtype)
                    want = reduced(parts, op)
                    for asynchronous in (False, True):
                        x = parts[me].clone()
                        work = dist.all_reduce(x, op, async_op=asynchronous)
                        assert (work is not None) == asynchronous
                        if asynchronous:
                            work.wait()
                        assert same(x, want), (dtype, op, shape, asynchronous)
                    x = parts[me].clone()
                    dist.reduce(x, n - 1, op)
                    assert same(x, want if me == n - 1 else parts[me]), (dtype, op, shape)

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_average_factor_bool_and_complex(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for dtype in FLOATS:
            x = torch.full((7,), me, dtype=dtype)
            dist.all_reduce(x, ReduceOp.AVG)
            assert torch.allclose(x.float(), torch.full((7,), (n - 1) / 2))
            x = torch.ones(7, dtype=dtype)
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
            assert torch.all(x == n / 2)
        # As coming-from-nccl.md says, an average divides the sum, which may be too large for the type.
        x = torch.full((7,), 40_000.0, dtype=torch.float16)
        dist.all_reduce(x, ReduceOp.AVG)
        assert torch.all(x == (40_000 if n == 1 else torch.inf))
        x = torch.full((7,), 40_000.0, dtype=torch.float16)
        dist.all_reduce(x, dist._make_nccl_premul_sum(1 / n))
        assert torch.allclose(x.float(), torch.tensor(40_000.0), rtol=2e-3)
        for dtype in COMPLEX:
            x = torch.full((4,), complex(1, me), dtype=dtype)
            dist.all_reduce(x)
            assert torch.all(x == sum(complex(1, r) for r in range(n)))
            dist.group.WORLD.allreduce([x], ReduceOp.SUM).wait()
            x = torch.full((4,), complex(1, me), dtype=dtype).conj()
            dist.group.WORLD.allreduce([x]).wait()
            assert torch.all(x == sum(complex(1, -r) for r in range(n)))
        x = torch.tensor([me == 0, False, True])
        dist.all_reduce(x, ReduceOp.SUM)
        assert x.tolist() == [True, False, True]
        x = torch.tensor([me == 0, False, True])
        dist.all_reduce(x, ReduceOp.MIN)
        assert x.tolist() == [n == 1, False, True]

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_moves(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for dtype in MOVED:
            for shape in [(0,), (), (3, 5), (700,)]:
                parts = everybody(shape, dtype)
                for root in {0, n - 1}:
                    x = data(me, shape, dtype)
                    dist.broadcast(x, root)
                    assert same(x, parts[root])
                    outputs = [torch.empty_like(x) for _ in range(n)] if me == root else None
                    dist.gather(parts[me], outputs, root)
                    assert outputs is None or all(map(same, outputs, parts))
                    # Torch has it since 2.15.
                    if hasattr(dist, "gather_single"):
                        whole = torch.empty((n, *shape), dtype=dtype) if me == root else None
                        dist.gather_single(parts[me], whole, root)
                        assert whole is None or same(whole, torch.stack(parts))
                    dist.scatter(x, parts if me == root else None, root)
                    assert same(x, parts[me])
                outputs = [torch.empty_like(x) for _ in range(n)]
                dist.all_gather(outputs, parts[me])
                assert all(map(same, outputs, parts))
                whole = torch.empty((n * x.numel(),), dtype=dtype)
                dist.all_gather_into_tensor(whole, parts[me].reshape(-1))
                assert same(whole, torch.cat([part.reshape(-1) for part in parts]))
                # Outputs that are parts of one tensor are written in place.
                if shape:
                    whole = torch.empty((n, *shape), dtype=dtype)
                    dist.all_gather(list(whole.unbind()), parts[me])
                    assert same(whole, torch.stack(parts))
                sent = [data(me * n + s, shape, dtype) for s in range(n)]
                outputs = [torch.empty_like(x) for _ in range(n)]
                dist.all_to_all(outputs, sent)
                assert all(map(same, outputs, [data(r * n + me, shape, dtype) for r in range(n)]))

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_reduce_scatter(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for dtype in [torch.float32, torch.bfloat16, torch.int16, torch.int64, torch.float8_e5m2]:
            for op in (ReduceOp.SUM, ReduceOp.MAX):
                blocks = [[data(r + b, (4, 3), dtype) for b in range(n)] for r in range(n)]
                want = reduced([blocks[r][me] for r in range(n)], op)
                out = torch.empty((4, 3), dtype=dtype)
                dist.reduce_scatter(out, blocks[me], op)
                assert same(out, want)
                out = torch.empty((4, 3), dtype=dtype)
                dist.reduce_scatter_tensor(out, torch.cat(blocks[me]), op)
                assert same(out, want)
        out = torch.empty(3)
        dist.reduce_scatter_tensor(out, torch.full((3 * n,), me + 1.0), ReduceOp.AVG)
        assert torch.allclose(out, torch.full((3,), (n + 1) / 2))

    run(ranks, body)


@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_blocks(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for asynchronous in (False, True):
            for dtype in (torch.float32, torch.int16, torch.complex64):
                sends, receives = [me + s for s in range(n)], [r + me for r in range(n)]
                sent = torch.full((sum(sends), 2), me, dtype=dtype)
                out = torch.empty((sum(receives), 2), dtype=dtype)
                work = dist.all_to_all_single(out, sent, receives, sends, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                want = torch.cat([torch.full((r + me, 2), r, dtype=dtype) for r in range(n)])
                assert same(out, want)
                out = torch.empty(2 * n, dtype=dtype)
                work = dist.all_to_all_single(out, torch.arange(2 * n).to(dtype), async_op=asynchronous)
                if asynchronous:
                    work.wait()
                assert same(out, torch.arange(2 * me, 2 * me + 2).repeat(n).to(dtype))
                outputs = [torch.empty(r, dtype=dtype) for r in range(n)]
                work = dist.all_gather(outputs, torch.full((me,), me, dtype=dtype), async_op=asynchronous)
                if asynchronous:
                    work.wait()
                assert all(torch.all(out == r) and out.numel() == r for r, out in enumerate(outputs))
        out = torch.empty(me + 1)
        dist.reduce_scatter(out, [torch.ones(r + 1) for r in range(n)])
        assert torch.all(out == n)

    run(ranks, body)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_tensors_that_are_not_contiguous(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        for asynchronous in (False, True):
            def done(work):
                if work is not None:
                    work.wait()

            base = torch.full((4, 6), me + 1.0)
            done(dist.all_reduce(base.t()[1:3], async_op=asynchronous))
            total = n * (n + 1) / 2
            assert torch.all(base[:, 1:3] == total) and torch.all(base[:, 0] == me + 1)
            base = torch.full((4, 6), float(me))
            done(dist.broadcast(base[:, ::2], n - 1, async_op=asynchronous))
            assert torch.all(base[:, ::2] == n - 1) and torch.all(base[:, 1::2] == me)
            out = torch.zeros(3, 2 * n).t()
            done(dist.all_gather_into_tensor(out, torch.full((3, 2), float(me)).t(), async_op=asynchronous))
            assert torch.all(out == torch.arange(n).repeat_interleave(2)[:, None])
            out = torch.zeros(3, 2).t()
            done(dist.reduce_scatter_tensor(out, torch.ones(3, 2 * n).t(), async_op=asynchronous))
            assert torch.all(out == n)
            x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
            done(dist.all_reduce(x, async_op=asynchronous))

    run(ranks, body)


def test_the_root_of_a_broadcast_is_only_read():
    def body():
        root = dist.get_rank() == 0
        # Nothing can be copied into this tensor.
        x = torch.full((1,), 3.0).expand(4) if root else torch.zeros(4)
        for asynchronous in (False, True):
            work = dist.broadcast(x, 0, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert x.tolist() == [3.0] * 4

    run(2, body)


def test_inference_tensors_that_are_not_contiguous():
    def body():
        with torch.inference_mode():
            tensor = torch.full((4, 3), float(dist.get_rank() + 1)).t()
        dist.all_reduce(tensor)
        with torch.inference_mode():
            assert tensor.is_inference() and (tensor == 3).all()

    run(2, body)


def test_parameters_that_are_not_contiguous():
    """Results are copied to leaves that require gradients, as contiguous leaves are written in place."""

    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        weight = torch.nn.Parameter(torch.full((2, 3, 4, 4), float(me)).to(memory_format=torch.channels_last))
        dist.broadcast(weight, 1)
        assert torch.equal(weight.detach(), torch.ones(2, 3, 4, 4))
        weight = torch.nn.Parameter(torch.ones(4, 5).t())
        dist.all_reduce(weight)
        assert torch.equal(weight.detach(), torch.full((5, 4), float(n)))
        parts = [torch.zeros(2, 3, requires_grad=True) for _ in range(n)]
        dist.all_gather(parts, torch.full((2, 3), float(me)))
        assert all(torch.equal(part.detach(), torch.full((2, 3), float(r))) for r, part in enumerate(parts))

    run(2, body)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_coalesced_forms(ranks):
    def body():
        me, n = dist.get_rank(), dist.get_world_size()
        total = n * (n + 1) / 2
        for asynchronous in (False, True):
            tensors = [torch.full((k + 1, 2), me + 1.0) for k in range(5)]
            tensors += [torch.full((40_000,), me + 1.0), torch.full((3,), me + 1, dtype=torch.int64)]
            tensors.append(torch.full((4, 4), me + 1.0).t()[::2])
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if asynchronous:
                manager.wait()
            assert all(torch.all(tensor == total) for tensor in tensors)
            outputs = [torch.empty(2 * n), torch.empty(30_000 * n)]
            inputs = [torch.full((2,), float(me)), torch.full((30_000,), float(me))]
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for output, input in zip(outputs, inputs):
                    dist.all_gather_into_tensor(output, input)
            if asynchronous:
                manager.wait()
            assert all(torch.equal(o, torch.arange(n).repeat_interleave(i.numel()).float())
                       for o, i in zip(outputs, inputs))
            with dist._coalescing_manager(async_ops=asynchronous) as manager:
                for input, output in zip(inputs, outputs):
                    dist.reduce_scatter_tensor(input, output)
            if asynchronous:
                manager.wait()
            assert all(torch.all(i == n * me) for i in inputs)
            # If a device is given, torch calls the operations one by one between start and end.
            x, y = torch.ones(3), torch.ones(5)
            with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
                dist.broadcast(x, 0)
                dist.broadcast(y, 0)
            manager.wait()
        lists = [[torch.empty(2), torch.empty(3)] for _ in range(n)]
        dist.all_gather_coalesced(lists, [torch.full((2,), float(me)), torch.full((3,), float(me))])
        assert all(torch.all(tensor == r) for r, tensors in enumerate(lists) for tensor in tensors)

    run(ranks, body)


def test_sparse_all_reduce():
    def body():
        me = dist.get_rank()
        x = torch.sparse_coo_tensor([[0, me + 1]], [[1.0, 2.0], [3.0, 4.0]], (5, 2))
        dist.all_reduce(x)
        want = torch.zeros(5, 2)
        want[0] = torch.tensor([3.0, 6.0])
        want[1:4] = torch.tensor([3.0, 4.0])
        assert torch.equal(x.to_dense(), want)

    run(3, body)


def test_sparse_all_reduces_do_not_block_their_caller():
    def body():
        me = dist.get_rank()
        store = dist.distributed_c10d._get_default_store()

        def sparse(value):
            return torch.sparse_coo_tensor([[0, me + 1]], [value, value], (5,))

        first, second, dense = sparse(1.0), sparse(2.0), torch.ones(3)
        if me == 2:
            store.get("started")  # by a rank that would otherwise wait for this one
        works = [dist.all_reduce(first, async_op=me != 1), dist.all_reduce(second, async_op=True)]
        # Other operations may be called before the sparse ones end, elsewhere or here.
        works.append(dist.all_reduce(dense, async_op=True))
        if me == 0:
            store.set("started", "")
        dist.all_reduce(torch.ones(3), group=dist.new_group([0, 1, 2]))
        for work in reversed(works):
            if work is not None:
                assert work.wait() and work.is_completed() and work.exception() is None
        for tensor, value in ((first, 1.0), (second, 2.0)):
            assert torch.all(dense == 3)
            assert tensor.to_dense().tolist() == [3 * value, value, value, value, 0]
        future = dist.all_reduce(first, dist.ReduceOp.AVG, async_op=True).get_future()
        assert future.wait()[0].to_dense().tolist() == [3.0, 1.0, 1.0, 1.0, 0.0]

    run(3, body)


@pytest.mark.parametrize("way", ["with", "set_default_device"])
def test_torchs_default_device_does_not_matter(way):
    """Kolo's own buffers are in host memory, wherever the program makes its tensors."""

    def body():
        x = torch.full((3, 2), float(dist.get_rank()))
        if way == "with":
            with torch.device("meta"):
                check(x)
        else:
            torch.set_default_device("meta")
            check(x)

    def check(x):
        assert torch.empty(1).is_meta
        me, cpu = dist.get_rank(), torch.device("cpu")
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        assert [part[0, 0].item() for part in parts] == [0.0, 1.0]
        dist.gather(x, parts if me == 0 else None)
        dist.all_to_all(parts, [x, x])
        assert [part[2, 1].item() for part in parts] == [0.0, 1.0]
        strided = torch.zeros(2, 3, device=cpu).t().copy_(x)
        dist.broadcast(strided, 1)
        assert strided[0, 0] == 1
        narrow = x.to(torch.float8_e5m2)
        dist.reduce_scatter(narrow, [narrow, narrow])
        assert narrow.float()[0, 0] == 1
        entry = torch.sparse_coo_tensor([[me]], [1.0], (2,), device=cpu)
        dist.all_reduce(entry)
        assert entry.to_dense().tolist() == [1.0, 1.0]
        dist.monitored_barrier()

    run(2, body)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_large_tensors(transport, monkeypatch):
    monkeypatch.setenv("KOLO_TRANSPORT", transport)

    def body():
        x = torch.arange(3_000_001, dtype=torch.float64)
        dist.all_reduce(x)
        assert torch.equal(x, torch.arange(3_000_001, dtype=torch.float64) * 3)

    run(3, body)
