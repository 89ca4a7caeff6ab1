"""Communicators for arrays."""

from __future__ import annotations

from collections.abc import Sequence

from . import _kolo, memory
from .errors import Usage
from .memory import NOTHING, Memory
from .numbers import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
    SUM,
)
from .work import Call, Work, operator

_Counts = Sequence[int]


def get_unique_id(host: str | None = None) -> bytes:
    """Makes an id of 128 bytes by which ranks find each other; pass it to all of them by your own means.

    Rank 0 must be on this host. ``host`` is the name or address by which the others reach it, if the one that packets to
    far hosts leave from is not right. Does not block. Raises :class:`kolo.Configuration` or :class:`kolo.System`.
    """
    return _kolo.unique_id(host)


def init(
    url: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    unique_id: bytes | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    **settings: object,
) -> Communicator:
    """Joins the other ranks. Blocks until all are there, at most ``join_timeout`` seconds (default 60).

    Args:
        url: ``tcp://host:port``, ``file:///path``, ``multicast://group:port/job`` or ``env://``; by default what the
            environment says, as torchrun, Open MPI, MPICH, Cray PALS, Slurm or ``kolo run`` set it.
        rank, world_size: Who this is, where neither the URL nor the environment tells.
        unique_id: What :func:`get_unique_id` made, instead of a URL; needs ``rank`` and ``world_size``.
        timeout: Seconds after which an operation gives up (default 600).
        settings: Any other setting by the name of its variable without ``KOLO_`` and in lower case, such as
            ``transport="tcp"`` or ``determinism="canonical"``. They come before the environment's.

    Raises :class:`kolo.Configuration` if something is missing or wrong, :class:`kolo.Join` if not all ranks arrive.
    """
    given = dict(settings, timeout=timeout, join_timeout=join_timeout)
    environment = {f"KOLO_{name.upper()}": str(value) for name, value in given.items() if value is not None}
    if unique_id is not None:
        if url is not None or rank is None or world_size is None:
            raise Usage("with unique_id, give rank and world_size, and no url")
        return Communicator(_kolo.connect_id(unique_id, rank, world_size, environment))
    if rank is not None:
        environment["KOLO_RANK"] = str(rank)
    if world_size is not None:
        environment["KOLO_WORLD_SIZE"] = str(world_size)
    if url is None:
        return Communicator(_kolo.connect_env(environment))
    return Communicator(_kolo.connect_url(url, environment))


class Communicator:
    """A group of ranks that communicate; made by :func:`kolo.init`, :meth:`split` and :meth:`group`.

    **Buffers** are NumPy arrays, objects with DLPack (CPU tensors), or writable buffers (``bytearray``, ``array.array``,
    ``memoryview``). They must be contiguous and are used in place, without a copy, with the interpreter's lock released.
    What is only read may be read-only. Lengths are in elements; shapes do not matter.

    **Order**: every rank makes the same calls in the same order, with the same lengths, types, operators and roots; a
    rank that does not is named in a :class:`kolo.Mismatch`. Blocking and started calls do not match each other.

    **Blocking**: a call without ``_start`` returns when this rank's part is done: its output is complete and its input may
    be changed. It waits at most :attr:`timeout` seconds. A call with ``_start`` returns a :class:`Work` at once and keeps
    its buffers alive; do not touch them before :meth:`Work.wait` has returned.

    **Operators**: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"avg"``, ``"premul_sum"`` (every rank's values are first
    multiplied by its ``factor``), ``"bit_and"``, ``"bit_or"``, ``"bit_xor"``, ``"logical_and"``, ``"logical_or"``,
    ``"logical_xor"``. Types: bool, integers of 8, 32 and 64 bits, float16, bfloat16, float32, float64; complex ones can be
    summed; all others can be moved.

    **Errors**: :class:`kolo.Usage` and :class:`kolo.Unsupported` come before anything is sent. After every other
    :class:`kolo.Error` the communicator cannot be used any more, on any rank.

    **Threads** may share a communicator if the order stays the same on all ranks. After ``os.fork`` the child cannot use
    it. Leaving a ``with`` block closes it.
    """

    __slots__ = ("_comm", "timeout", "__weakref__")

    #: Seconds after which a blocking call, or the wait for a started one, gives up.
    timeout: float

    def __init__(self, comm: _kolo.Comm) -> None:
        self._comm = comm
        self.timeout = comm.timeout

    # Facts.

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        return self._comm.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._comm.world_size

    @property
    def local_rank(self) -> int:
        """Rank among those on this host."""
        return self._comm.local_rank

    @property
    def hosts(self) -> list[int]:
        """Index of each rank's host; ranks with the same index share memory."""
        return self._comm.hosts

    def summary(self) -> str:
        """One line: which transports are used, and why not others."""
        return self._comm.summary()

    def settings(self) -> str:
        """All settings in force, a ``KOLO_NAME=value`` per line."""
        return self._comm.settings()

    def routes(self) -> list[tuple[int, str, str, list[tuple[str, str]]]]:
        """For each other rank: its number, the transport, how it is reached, and what was declined and why."""
        return self._comm.routes()

    def recent(self) -> list[str]:
        """The last operations, oldest first, with their times."""
        return self._comm.recent()

    # Collectives over vectors: input and output have the same length.

    def all_reduce(self, buffer, op: str = "sum", *, out=None, factor: float = 1.0):
        """Reduces the vectors of all ranks, element by element; everybody gets the result in ``out``, or in place."""
        call, out = self._vector(ALL_REDUCE, buffer, out, op, factor)
        self._run(call)
        return out

    def all_reduce_start(self, buffer, op: str = "sum", *, out=None, factor: float = 1.0) -> Work:
        """Starts :meth:`all_reduce`."""
        return self._start(*self._vector(ALL_REDUCE, buffer, out, op, factor))

    def reduce(self, buffer, op: str = "sum", root: int = 0, *, out=None, factor: float = 1.0):
        """As :meth:`all_reduce`, for rank ``root`` alone; the others' ``out`` is not touched."""
        call, out = self._vector(REDUCE, buffer, out, op, factor, root)
        self._run(call)
        return out

    def reduce_start(self, buffer, op: str = "sum", root: int = 0, *, out=None, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce`."""
        return self._start(*self._vector(REDUCE, buffer, out, op, factor, root))

    def broadcast(self, buffer, root: int = 0):
        """Gives everybody the vector of rank ``root``, in place."""
        call, out = self._vector(BROADCAST, buffer, None, "sum", 1.0, root)
        self._run(call)
        return out

    def broadcast_start(self, buffer, root: int = 0) -> Work:
        """Starts :meth:`broadcast`."""
        return self._start(*self._vector(BROADCAST, buffer, None, "sum", 1.0, root))

    def scan(self, buffer, op: str = "sum", *, out=None):
        """Gives rank r the reduction of the vectors of ranks 0 to r."""
        call, out = self._vector(SCAN, buffer, out, op, 1.0)
        self._run(call)
        return out

    def scan_start(self, buffer, op: str = "sum", *, out=None) -> Work:
        """Starts :meth:`scan`."""
        return self._start(*self._vector(SCAN, buffer, out, op, 1.0))

    def exscan(self, buffer, op: str = "sum", *, out=None):
        """Gives rank r the reduction of the vectors of ranks 0 to r - 1; rank 0 keeps what ``out`` holds."""
        call, out = self._vector(EXSCAN, buffer, out, op, 1.0)
        self._run(call)
        return out

    def exscan_start(self, buffer, op: str = "sum", *, out=None) -> Work:
        """Starts :meth:`exscan`."""
        return self._start(*self._vector(EXSCAN, buffer, out, op, 1.0))

    # Collectives over blocks: one side has a block per rank, the other has one, or both have one per rank.

    def all_gather(self, input, out=None):
        """Puts the blocks of all ranks behind one another in ``out``, which has ``world_size`` times the elements.

        Without ``out`` a new NumPy array with the ranks as its first axis is made and returned.
        """
        call, out = self._blocks(ALL_GATHER, input, self._room(input, out, self.world_size))
        self._run(call)
        return out

    def all_gather_start(self, input, out=None) -> Work:
        """Starts :meth:`all_gather`; :meth:`Work.wait` returns ``out``."""
        return self._start(*self._blocks(ALL_GATHER, input, self._room(input, out, self.world_size)))

    def reduce_scatter(self, input, out, op: str = "sum", *, factor: float = 1.0):
        """Gives rank r the reduction of everybody's block r. ``input`` has ``world_size`` times the elements of ``out``."""
        call, out = self._blocks(REDUCE_SCATTER, input, out, op, factor)
        self._run(call)
        return out

    def reduce_scatter_start(self, input, out, op: str = "sum", *, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce_scatter`."""
        return self._start(*self._blocks(REDUCE_SCATTER, input, out, op, factor))

    def all_to_all(self, input, out=None):
        """Sends block s to each rank s and receives one from each. Both have ``world_size`` blocks; ``out`` may be ``input``."""
        call, out = self._blocks(ALL_TO_ALL, input, self._room(input, out, 1))
        self._run(call)
        return out

    def all_to_all_start(self, input, out=None) -> Work:
        """Starts :meth:`all_to_all`."""
        return self._start(*self._blocks(ALL_TO_ALL, input, self._room(input, out, 1)))

    def gather(self, input, out=None, root: int = 0):
        """Gives rank ``root`` the blocks of all ranks; the others need no ``out`` and get ``None``."""
        call, out = self._gather(input, out, root)
        self._run(call)
        return out

    def gather_start(self, input, out=None, root: int = 0) -> Work:
        """Starts :meth:`gather`."""
        return self._start(*self._gather(input, out, root))

    def scatter(self, input, out, root: int = 0):
        """Gives rank r block r of rank ``root``; the others need no ``input``."""
        call, out = self._scatter(input, out, root)
        self._run(call)
        return out

    def scatter_start(self, input, out, root: int = 0) -> Work:
        """Starts :meth:`scatter`."""
        return self._start(*self._scatter(input, out, root))

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self._run(_BARRIER)

    def barrier_start(self) -> Work:
        """Starts a barrier: the work is done once every rank has started it."""
        return self._start(_BARRIER, None)

    # Blocks of unequal length, one behind the other; counts are in elements.

    def all_gather_v(self, input, out, counts: _Counts):
        """As :meth:`all_gather` with ``counts[r]`` elements of rank r. All ranks pass the same counts."""
        return self._run_v(*self._all_gather_v(input, out, counts))

    def all_gather_v_start(self, input, out, counts: _Counts) -> Work:
        """Starts :meth:`all_gather_v`."""
        return self._start_v(*self._all_gather_v(input, out, counts))

    def reduce_scatter_v(self, input, out, counts: _Counts, op: str = "sum", *, factor: float = 1.0):
        """As :meth:`reduce_scatter` with ``counts[r]`` elements in block r. All ranks pass the same counts."""
        return self._run_v(*self._reduce_scatter_v(input, out, counts, op, factor))

    def reduce_scatter_v_start(self, input, out, counts: _Counts, op: str = "sum", *, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce_scatter_v`."""
        return self._start_v(*self._reduce_scatter_v(input, out, counts, op, factor))

    def gather_v(self, input, out=None, counts: _Counts = (), root: int = 0):
        """As :meth:`gather` with ``counts[r]`` elements of rank r; ``out`` and ``counts`` are used on rank ``root``."""
        return self._run_v(*self._gather_v(input, out, counts, root))

    def gather_v_start(self, input, out=None, counts: _Counts = (), root: int = 0) -> Work:
        """Starts :meth:`gather_v`."""
        return self._start_v(*self._gather_v(input, out, counts, root))

    def scatter_v(self, input, out, counts: _Counts = (), root: int = 0):
        """As :meth:`scatter` with ``counts[r]`` elements for rank r; ``input`` and ``counts`` are used on rank ``root``."""
        return self._run_v(*self._scatter_v(input, out, counts, root))

    def scatter_v_start(self, input, out, counts: _Counts = (), root: int = 0) -> Work:
        """Starts :meth:`scatter_v`."""
        return self._start_v(*self._scatter_v(input, out, counts, root))

    def all_to_all_v(self, input, send_counts: _Counts, out, recv_counts: _Counts):
        """As :meth:`all_to_all` with ``send_counts[s]`` elements to rank s and ``recv_counts[r]`` from rank r."""
        return self._run_v(*self._all_to_all_v(input, send_counts, out, recv_counts))

    def all_to_all_v_start(self, input, send_counts: _Counts, out, recv_counts: _Counts) -> Work:
        """Starts :meth:`all_to_all_v`."""
        return self._start_v(*self._all_to_all_v(input, send_counts, out, recv_counts))

    # Messages between two ranks. The i-th send from one rank to another with a tag meets the i-th receive of that pair
    # with that tag, blocking or started.

    def send(self, buffer, to: int, tag: int = 0) -> None:
        """Sends to rank ``to``; blocks until the buffer may be changed, which may be before it has been received."""
        self._comm.transfer([self._transfer(True, buffer, to, tag)[0]], self.timeout)

    def send_start(self, buffer, to: int, tag: int = 0) -> Work:
        """Starts :meth:`send`."""
        return self._start_transfer(True, buffer, to, tag)

    def recv(self, buffer, source: int | None = None, tag: int = 0) -> int:
        """Receives exactly as many elements as ``buffer`` has from rank ``source``, or from whichever sends first.

        Returns the source.
        """
        return self._comm.transfer([self._transfer(False, buffer, source, tag)[0]], self.timeout)[0]

    def recv_start(self, buffer, source: int | None = None, tag: int = 0) -> Work:
        """Starts :meth:`recv`; :attr:`Work.source` is known when it is over."""
        return self._start_transfer(False, buffer, source, tag)

    def send_recv(self, send, to: int, recv, source: int):
        """Sends and receives at the same time, so that rings and exchanges cannot deadlock. Returns what was received."""
        return self.batch([("send", send, to), ("recv", recv, source)])[1]

    def batch(self, transfers: Sequence[tuple[str, object, int]]) -> list:
        """Runs ``("send", buffer, to)`` and ``("recv", buffer, source)`` together; no pattern of them deadlocks.

        Returns the buffers, in order.
        """
        found = []
        for kind, buffer, peer in transfers:
            if kind not in ("send", "recv"):
                raise Usage(f"a transfer of kind '{kind}'; use 'send' or 'recv'")
            found.append(self._transfer(kind == "send", buffer, peer, 0))
        self._comm.transfer([transfer for transfer, _ in found], self.timeout)
        return [buffer for _, buffer, _ in transfers]

    # Communicators of some of the ranks, and the end.

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Ranks that give the same ``color`` form a new communicator, ordered by ``key`` and then by rank.

        A rank that gives ``None`` gets ``None``. Every rank calls it; blocks until all have.
        """
        part = self._comm.split(color, key)
        return None if part is None else Communicator(part)

    def group(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of the listed ranks, in this order. Only these call it; blocks until all have."""
        return Communicator(self._comm.group(list(ranks)))

    def abort(self, reason: str = "the program gave up") -> None:
        """Gives up: every call in progress on any rank, and every later one, fails with ``reason``. Returns at once."""
        self._comm.abort(reason)

    def close(self) -> None:
        """Leaves. Waits up to five seconds until what was started has left. Closing twice does nothing."""
        self._comm.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kolo.Communicator rank {self.rank} of {self.world_size}>"

    # How calls are made.

    def _run(self, call: Call) -> None:
        self._comm.run(*call.arguments, self.timeout)

    def _start(self, call: Call, out) -> Work:
        return Work(self._comm.start(*call.arguments, call.owner), out, self.timeout)

    def _vector(self, collective: int, buffer, out, op: str, factor: float, root: int = 0) -> tuple[Call, object]:
        in_place = out is None or out is buffer
        out = buffer if in_place else out
        input = memory.find("the buffer", buffer, in_place)
        output = input if in_place else memory.find("out", out, True)
        number = operator(op)
        if collective != BROADCAST:
            input.check_op(number)
        if input.count != output.count or input.type != output.type:
            raise Usage(
                f"the input has {input.elements} elements of '{input.name}', out has {output.elements} of "
                f"'{output.name}'; they must agree"
            )
        return Call(collective, input, output, input.count, number, factor, root), out

    def _blocks(
        self, collective: int, input, out, op: str = "sum", factor: float = 1.0, root: int = 0
    ) -> tuple[Call, object]:
        from_, to = memory.find("the input", input, False), memory.find("out", out, True)
        number = operator(op)
        if collective == REDUCE_SCATTER:
            from_.check_op(number)
        ranks = self.world_size
        count = from_.count if collective in (ALL_GATHER, GATHER) else to.count
        if collective == ALL_TO_ALL:
            count = from_.count // ranks
        needs_from = count if collective in (ALL_GATHER, GATHER) else count * ranks
        needs_to = count if collective in (REDUCE_SCATTER, SCATTER) else count * ranks
        self._expect("the input", from_, needs_from)
        self._expect("out", to, needs_to)
        self._same_type(from_, to)
        return Call(collective, from_, to, count, number, factor, root), out

    def _gather(self, input, out, root: int) -> tuple[Call, object]:
        if self.rank == root:
            return self._blocks(GATHER, input, self._room(input, out, self.world_size), root=root)
        from_ = memory.find("the input", input, False)
        return Call(GATHER, from_, NOTHING, from_.count, SUM, 1.0, root), None

    def _scatter(self, input, out, root: int) -> tuple[Call, object]:
        if self.rank == root:
            return self._blocks(SCATTER, input, out, root=root)
        to = memory.find("out", out, True)
        return Call(SCATTER, NOTHING, to, to.count, SUM, 1.0, root), out

    def _all_gather_v(self, input, out, counts):
        own = self._count("counts", counts)
        return self._uneven(ALL_GATHER, input, [own], out, counts)

    def _reduce_scatter_v(self, input, out, counts, op, factor):
        own = self._count("counts", counts)
        return self._uneven(REDUCE_SCATTER, input, counts, out, [own], op, factor)

    def _gather_v(self, input, out, counts, root):
        if self.rank != root:
            return self._uneven(GATHER, input, None, None, (), root=root)
        return self._uneven(GATHER, input, [self._count("counts", counts)], out, counts, root=root)

    def _scatter_v(self, input, out, counts, root):
        if self.rank != root:
            return self._uneven(SCATTER, None, (), out, None, root=root)
        return self._uneven(SCATTER, input, counts, out, [self._count("counts", counts)], root=root)

    def _all_to_all_v(self, input, send_counts, out, recv_counts):
        self._count("send_counts", send_counts)
        self._count("recv_counts", recv_counts)
        return self._uneven(ALL_TO_ALL, input, send_counts, out, recv_counts)

    def _uneven(self, collective, input, input_counts, out, output_counts, op="sum", factor=1.0, root=0):
        """The arguments of a v-form, and its output. Counts of ``None`` are one block, as long as the buffer."""
        from_ = NOTHING if input is None else memory.find("the input", input, False)
        to = NOTHING if out is None else memory.find("out", out, True)
        number = operator(op)
        if collective == REDUCE_SCATTER:
            from_.check_op(number)
        if from_ is not NOTHING and to is not NOTHING:
            self._same_type(from_, to)
        like = to if from_ is NOTHING else from_
        inputs = [from_.count] if input_counts is None else [count * like.units for count in input_counts]
        outputs = [to.count] if output_counts is None else [count * like.units for count in output_counts]
        self._expect("the input", from_, sum(inputs))
        self._expect("out", to, sum(outputs))
        arguments = (collective, from_.address, inputs, to.address, outputs, like.type, number, factor, root)
        return arguments, (from_.owner, to.owner), out

    def _run_v(self, arguments, _owner, out):
        self._comm.run_v(*arguments, self.timeout)
        return out

    def _start_v(self, arguments, owner, out) -> Work:
        return Work(self._comm.start_v(*arguments, owner), out, self.timeout)

    def _transfer(self, send: bool, buffer, peer: int | None, tag: int) -> tuple[tuple, Memory]:
        found = memory.find("the buffer", buffer, not send)
        for what, value in (("the other rank", peer), ("tag", tag)):
            if value is not None and not 0 <= value <= 0xFFFF_FFFF:
                raise Usage(f"{what} is {value}, but must be 0 or more, and below 2^32")
        return (send, peer, found.address, found.count * memory.SIZES[found.type], found.type, tag), found

    def _start_transfer(self, send: bool, buffer, peer: int | None, tag: int) -> Work:
        transfer, found = self._transfer(send, buffer, peer, tag)
        return Work(self._comm.start_transfer(transfer, found.owner), buffer, self.timeout)

    def _room(self, input, out, blocks: int):
        """``out``, or a new array with room for so many blocks like ``input``."""
        if out is not None:
            return out
        try:
            import numpy
        except ImportError:
            raise Usage("without NumPy, out must be given") from None
        input = numpy.asarray(input)
        return numpy.empty(input.shape if blocks == 1 else (blocks, *input.shape), input.dtype)

    def _count(self, what: str, counts: _Counts) -> int:
        if len(counts) != self.world_size:
            raise Usage(f"{len(counts)} {what} were given, one per rank is needed: {self.world_size}")
        return counts[self.rank]

    @staticmethod
    def _expect(what: str, found: Memory, count: int) -> None:
        if found.count != count:
            expected = count / found.units
            raise Usage(f"{what} has {found.elements} elements, but must have {expected:g}")

    @staticmethod
    def _same_type(one: Memory, other: Memory) -> None:
        if one.type != other.type or one.units != other.units:
            raise Usage(f"the input holds elements of '{one.name}', out of '{other.name}'; they must agree")


_BARRIER = Call(BARRIER, NOTHING, NOTHING, 0, SUM, 1.0, 0)
