"""The usual calls run without a Python frame, and do the same as the general ones."""

import ast
import inspect
import sys

import numpy as np
import pytest
from array_ranks import run

import kolo
from kolo import communicator

TYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
OPERATORS = ["sum", "prod", "min", "max", "bit_or", "logical_and"]


def frames(call):
    """The Python functions that run during a call, except lambdas."""
    entered = []
    sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in entered if name != "<lambda>"]


def usual(comm):
    """The usual calls, of all operations."""
    n, peer = comm.world_size, comm.world_size - 1 - comm.rank
    x, y, all, out = np.ones(3), np.empty(3), np.ones(3 * n), np.empty(3 * n)
    root = comm.rank == 0
    buffer = bytearray(8 * n)
    return {
        "all_reduce": lambda: comm.all_reduce(x),
        "all_reduce(op)": lambda: comm.all_reduce(x, "max"),
        "all_reduce(op=)": lambda: comm.all_reduce(x, op="max"),
        "all_reduce(out)": lambda: comm.all_reduce(x, out=y),
        "all_reduce(out=None)": lambda: comm.all_reduce(x, out=None),
        "all_reduce(factor)": lambda: comm.all_reduce(x, "premul_sum", factor=0.5),
        "all_reduce of a buffer": lambda: comm.all_reduce(buffer),
        "all_reduce_start": lambda: comm.all_reduce_start(x).wait(),
        "reduce": lambda: comm.reduce(x, "sum", n - 1),
        "reduce_start": lambda: comm.reduce_start(x, root=n - 1, out=y).wait(),
        "broadcast": lambda: comm.broadcast(x, 0),
        "broadcast_start": lambda: comm.broadcast_start(x).wait(),
        "scan": lambda: comm.scan(x),
        "scan_start": lambda: comm.scan_start(x).wait(),
        "exscan": lambda: comm.exscan(x, out=y),
        "exscan_start": lambda: comm.exscan_start(x).wait(),
        "all_gather": lambda: comm.all_gather(x, out),
        "all_gather()": lambda: comm.all_gather(x),
        "all_gather_start": lambda: comm.all_gather_start(x, out=out).wait(),
        "reduce_scatter": lambda: comm.reduce_scatter(all, y),
        "reduce_scatter_start": lambda: comm.reduce_scatter_start(all, y, "min").wait(),
        "all_to_all": lambda: comm.all_to_all(all, out),
        "all_to_all_start": lambda: comm.all_to_all_start(all).wait(),
        "gather": lambda: comm.gather(x, out if root else None),
        "gather_start": lambda: comm.gather_start(x).wait(),
        "scatter": lambda: comm.scatter(all if root else None, y),
        "scatter_start": lambda: comm.scatter_start(all if root else None, y, 0).wait(),
        "barrier": comm.barrier,
        "barrier_start": lambda: comm.barrier_start().wait(),
        "send_recv": lambda: comm.send_recv(x, peer, y, peer),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_no_frame_in_python(ranks):
    def body(comm):
        # The first call that needs NumPy's function for new arrays looks it up.
        comm.all_gather(np.ones(3))
        for name, call in usual(comm).items():
            wrapped = lambda: call()  # noqa: E731
            assert [frame for frame in frames(wrapped) if frame not in ("<lambda>", "usual")] == [], name
        if ranks == 2:
            x, y = np.empty(3), np.ones(3)
            peer = 1 - comm.rank
            for name, call in {
                "messages": lambda: (comm.send(x, 1, 7), comm.recv(x, 1)) if comm.rank == 0 else (comm.recv(x, 0, tag=7), comm.send(x, 0)),
                "any source": lambda: comm.send(x, 1) if comm.rank == 0 else comm.recv(x),
                "started": lambda: (comm.recv_start(x, peer), comm.send_start(y, peer))[0].wait(),
            }.items():
                assert frames(call) == [], name

    run(ranks, body)


def other(name):
    """The same text as a different object, which only the general methods recognise."""
    return "".join(list(name))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_both_ways_agree(ranks):
    def body(comm):
        n = comm.world_size
        for dtype in TYPES:
            for length in (0, 1, 17, 4099):
                x = ((np.arange(length) * 5 + comm.rank * 3) % 4).astype(dtype)
                blocks = np.concatenate([x] * n)
                for op in OPERATORS:
                    calls = [
                        lambda o: comm.all_reduce(x, o, out=np.empty_like(x)),
                        lambda o: comm.all_reduce(x.copy(), o),
                        lambda o: comm.reduce(x, o, n - 1, out=np.zeros_like(x)),
                        lambda o: comm.scan(x, o, out=np.zeros_like(x)),
                        lambda o: comm.exscan(x, o, out=np.zeros_like(x)),
                        lambda o: comm.reduce_scatter(blocks, np.empty_like(x), o),
                        lambda o: comm.all_reduce_start(x, o, out=np.empty_like(x)).wait(),
                    ]
                    for call in calls:
                        outcomes = []
                        for name in (op, other(op)):
                            try:
                                outcomes.append(call(name))
                            except kolo.Error as error:
                                outcomes.append((type(error), str(error)))
                        one, two = outcomes
                        same = one == two if isinstance(one, tuple) else np.array_equal(one, two) and one.dtype == two.dtype
                        assert same, (dtype, length, op, one, two)

    run(ranks, body)


def test_signatures_and_texts_are_those_of_the_methods_in_python():
    tree = ast.parse(inspect.getsource(communicator))
    [definition] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    written = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    compiled = [name for name, member in vars(kolo.Communicator).items() if inspect.ismethoddescriptor(member) and name in written]
    assert len(compiled) == 27
    for name in compiled:
        member, node = getattr(kolo.Communicator, name), written[name]
        shown = [parameter.name for parameter in inspect.signature(member).parameters.values()]
        arguments = node.args
        assert shown == [argument.arg for argument in arguments.args + arguments.kwonlyargs], name
        defaults = [p.default for p in inspect.signature(member).parameters.values() if p.default is not p.empty]
        expected = [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]
        assert defaults == [ast.literal_eval(default) for default in expected], name
        assert inspect.getdoc(member) == ast.get_docstring(node), name


def test_wrong_calls_raise_as_ever_and_keep_nothing():
    def body(comm):
        x, y = np.ones(3), np.ones(4)
        text = bytearray(24)
        before = [sys.getrefcount(thing) for thing in (x, y, text, comm)]
        wrong = [
            (TypeError, lambda: comm.all_reduce()),
            (TypeError, lambda: comm.all_reduce(x, "sum", y)),
            (TypeError, lambda: comm.all_reduce(x, op="sum", operator="sum")),
            (TypeError, lambda: comm.all_reduce(x, buffer=x)),
            (TypeError, lambda: comm.barrier(x)),
            (kolo.Usage, lambda: comm.all_reduce(x, out=y)),
            (kolo.Usage, lambda: comm.all_reduce(x, 5)),
            (kolo.Usage, lambda: comm.all_gather(x, y)),
            (kolo.Usage, lambda: comm.all_gather(x, text)),
            (kolo.Usage, lambda: comm.all_reduce(x, "bit_and")),
            (kolo.Usage, lambda: comm.all_reduce_start(x, "bit_and")),
            (kolo.Usage, lambda: comm.broadcast(x, 7)),
            (kolo.Usage, lambda: comm.broadcast(x, 2**80)),
            (kolo.Usage, lambda: comm.send(x, 9)),
            (kolo.Usage, lambda: comm.send(x, -1)),
            (kolo.Usage, lambda: comm.send_start(text, 9)),
            (kolo.Usage, lambda: comm.scatter(x, text)),
            (kolo.Usage, lambda: comm.all_reduce(None)),
        ]
        for kind, call in wrong * 20:
            with pytest.raises(kind):
                call()
        for call in (lambda: comm.all_reduce(x), lambda: comm.all_reduce(text), lambda: comm.all_gather_start(x, y[:3]).wait()):
            for _ in range(100):
                call()
        with pytest.raises(kolo.Usage, match="closed"):
            comm.close()
            comm.all_reduce(text)
        assert [sys.getrefcount(thing) for thing in (x, y, text, comm)] == before
        # The buffer is no longer held, so it can be resized.
        text.append(1)

    run(1, body)


def test_buffers_stay_lent_until_the_operation_is_over():
    def body(comm):
        buffer = bytearray(8)
        if comm.rank == 0:
            work = comm.recv_start(buffer, 1)
            with pytest.raises(BufferError):
                buffer.append(1)
            comm.barrier()
            work.wait()
            assert buffer == b"12345678"
            del work
        else:
            comm.barrier()
            comm.send(b"12345678", 0)
        comm.barrier()
        buffer.append(1)

    run(2, body)


def test_the_time_out_is_that_of_the_attribute():
    def body(comm):
        assert comm.timeout == 5
        if comm.rank == 0:
            comm.timeout = 0.2
            with pytest.raises(kolo.Timeout):
                comm.all_reduce(np.ones(1))
        else:
            with pytest.raises(kolo.Error):
                comm.recv(np.ones(1), 0)

    run(2, body, settings={"timeout": 5})


def test_communicators_have_the_time_out_of_the_one_they_were_made_from():
    def body(comm):
        comm.timeout = 7.5
        ranks = range(comm.world_size)
        for made in (comm.split(0), comm.dup(), comm.group(ranks), comm.dup().shrink(), comm.shrink().dup()):
            assert made.timeout == 7.5
        made.timeout = 2
        assert comm.timeout == 7.5

    run(2, body)


def test_tensors_are_lent_without_a_frame():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch lends tensors by a call in Python only")

    def body(comm):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            x, out = torch.ones(2, 3).to(dtype), torch.zeros(2, 3).to(dtype)
            assert frames(lambda: comm.all_reduce(x, out=out)) == []
            assert (out == torch.full((2, 3), 2).to(dtype)).all()
            assert frames(lambda: comm.all_reduce_start(x, "max").wait()) == []
        part = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        assert frames(lambda: comm.all_reduce(part)) == [] and (part == 2).all()
        before = sys.getrefcount(x)
        for _ in range(100):
            comm.all_reduce(x)
        assert sys.getrefcount(x) == before
        # Unusual arguments take the general way.
        with pytest.raises(kolo.Usage, match="gradient"):
            comm.all_reduce(torch.ones(2, requires_grad=True))
        with pytest.raises(kolo.Usage, match="not contiguous"):
            comm.all_reduce(torch.ones(4, 4).t())
        with pytest.raises(kolo.Usage, match="must agree"):
            comm.all_reduce(torch.ones(4), out=torch.ones(5))
        z = torch.full((5,), 1 + 1j)
        assert (comm.all_reduce(z) == 2 + 2j).all()

    run(2, body)
