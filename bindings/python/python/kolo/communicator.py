"""Communicators for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from . import _kolo, memory, operators
from .calls import BARRIER_CALL, Calls, Counts, Lent
from .errors import Usage
from .memory import TYPE_NAMES
from .numbers import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    EXSCAN,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
)
from .objects import Objects
from .probing import Probing
from .work import Call, Work, check_no_factor, operator


class Communicator(Calls, Objects, Probing, _kolo.Base):
    """A group of ranks that communicate; made by :func:`kolo.init`, :meth:`split` and :meth:`group`.

    **Buffers** are NumPy arrays, or objects with DLPack (tensors), ``__cuda_array_interface__`` or the buffer protocol
    (``bytearray``, ``array.array``, ``memoryview``). They are used in place, without a copy, with the interpreter's lock released,
    and must be contiguous. Only NumPy arrays need not be: Kolo works on a contiguous copy of such an array, and copies it back when
    the call returns, or in :meth:`Work.wait`. Inputs may be read-only: ``bytes``, NumPy's scalars, immutable arrays. Outputs may
    not: give ``out``, or for a scalar ``numpy.asarray(x)``. Lengths are in elements; shapes do not matter.

    **Order**: every rank makes the same calls in the same order, with the same lengths, types, operators and roots. If a rank
    does not, a :class:`kolo.Mismatch` names it. Blocking and started collectives do not match each other; messages do.

    **Blocking**: a call without ``_start`` returns when this rank's part is done: its output is complete and its input may
    be changed. It waits at most :attr:`timeout` seconds. A call with ``_start`` returns a :class:`Work` at once and keeps
    its buffers alive; do not touch them before :meth:`Work.wait` has returned.

    **Operators**: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"avg"``, ``"premul_sum"`` (every rank's values are first
    multiplied by its ``factor``, which no other operator takes), ``"bit_and"``, ``"bit_or"``, ``"bit_xor"``,
    ``"logical_and"``, ``"logical_or"``, ``"logical_xor"``. Types: bool, integers of 8, 16, 32 and 64 bits, float16, bfloat16,
    float32, float64. Complex numbers can be summed; elements of all other types can be moved.

    **Operators of your own** are functions ``op(a, b)`` in place of a name, in blocking calls on NumPy arrays of any type.
    ``op`` combines two arrays of one shape element by element, as NumPy's ufuncs do (``numpy.hypot``), and returns the result. It
    must be associative and need not commute: values are combined in the order of the ranks. If it raises, the communicator ends on
    all ranks.

    **Errors**: :class:`kolo.Usage` and :class:`kolo.Unsupported` are raised before anything is sent. After every other
    :class:`kolo.Error` the communicator cannot be used any more, on any rank.

    **Threads** may share a communicator if the order stays the same on all ranks. After ``os.fork`` the child cannot use
    it. Leaving a ``with`` block closes it.
    """

    __slots__ = ("__weakref__",)

    # Facts.

    #: This process's rank, from 0.
    rank: int
    #: Number of ranks.
    world_size: int
    #: Seconds after which a blocking call, or the wait for a started one, gives up. Communicators that are made from this one begin with
    #: it.
    timeout: float

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host, from 0."""
        return self._comm.local_rank

    @property
    def hosts(self) -> list[int]:
        """Index of each rank's host; ranks with the same index share memory."""
        return self._comm.hosts

    def summary(self) -> str:
        """Returns one line that says which transports are used, and why not others."""
        return self._comm.summary()

    def settings(self) -> str:
        """Returns all settings in force, one ``KOLO_NAME=value`` per line."""
        return self._comm.settings()

    def routes(self) -> list[tuple[int, str, str, list[tuple[str, str]]]]:
        """Returns for each other rank its number, the transport, how it is reached, and the alternatives declined, with reasons."""
        return self._comm.routes()

    def recent(self) -> list[str]:
        """Returns the last operations, oldest first, with their times."""
        return self._comm.recent()

    def explain(self, collective: str, count: int, dtype="float32", op: str = "sum", root: int = 0) -> str:
        """Returns the algorithm that a call with ``count`` elements would use, its expected time, and why others were not chosen.

        ``count`` is the length of a rank's block, as in a call. Runs nothing. The answer holds for blocking calls that take a plan
        over the links.
        """
        if collective not in _kolo.COLLECTIVES:
            raise Usage(f"unknown collective '{collective}'; expected one of {', '.join(_kolo.COLLECTIVES)}")
        name = str(dtype).rpartition(".")[2]
        if name not in TYPE_NAMES:
            raise Usage(f"unknown type '{name}'; expected one of {', '.join(TYPE_NAMES)}")
        self._in_range("explain", "count", count, 48)
        self._in_range("explain", "root", root)
        return self._comm.explain(_kolo.COLLECTIVES.index(collective), count, TYPE_NAMES[name], operator(op), root)

    # Collectives over vectors: input and output have the same length.

    def all_reduce(self, buffer, op: str = "sum", *, out=None, factor: float = 1.0):
        """Reduces the vectors of all ranks, element by element; every rank gets the result in ``out``, or in place."""
        if callable(op):
            check_no_factor(op, factor)
            return operators.all_reduce(self, buffer, op, out)
        call, out = self._vector(ALL_REDUCE, buffer, out, op, factor)
        self._run(call)
        return out

    def all_reduce_start(self, buffer, op: str = "sum", *, out=None, factor: float = 1.0) -> Work:
        """Starts :meth:`all_reduce`."""
        return self._start(*self._vector(ALL_REDUCE, buffer, out, op, factor))

    def own_shards(self, shards: int) -> range:
        """Returns the numbers of this rank's own shards among ``shards``, for :meth:`all_reduce_shards`: a range, which may be empty."""
        return range(*self._comm.own_shards(self._shards(shards)))

    def all_reduce_shards(self, input, shards: int, op: str = "sum", *, out=None):
        """Reduces ``shards`` vectors, element by element; every rank gets the result in ``out``.

        ``input`` holds the vectors of :meth:`own_shards`, one after another (an array with the shards as its first axis). The bits of
        the result depend on the shards alone: they are the same for any number of ranks, and also after ranks have died and others
        have taken over their shards. ``"avg"`` divides by the number of shards, which is 1 to 16,384. ``out`` must not overlap the
        input; without it the result is a new NumPy array. A rank without shards must give ``out``.
        """
        shards = self._shards(shards)
        own = len(self.own_shards(shards))
        if out is None and own == 0:
            raise Usage(f"this rank has none of {shards} shards; out must be given, with the length of a shard")
        out = self._shard_room(input, out, own)
        from_, to = self._find("the input", input, False), self._find("out", out, True)
        number = operator(op)
        from_.check_op(number)
        self._expect("the input", from_, to.count * own)
        self._same_type(from_, to)
        call = Call(ALL_REDUCE, from_, to, to.count, number, 1.0, 0)
        self._comm.run_shards(call.arguments, shards, self.timeout)
        memory.copy_back(call.backs)
        return out

    def reduce(self, buffer, op: str = "sum", root: int = 0, *, out=None, factor: float = 1.0):
        """As :meth:`all_reduce`, but only rank ``root`` gets the result; the other ranks' buffer and ``out`` are not touched, and may be
        read-only."""
        if callable(op):
            check_no_factor(op, factor)
            return operators.reduce(self, buffer, op, root, out)
        call, out = self._vector(REDUCE, buffer, out, op, factor, root)
        self._run(call)
        return out

    def reduce_start(self, buffer, op: str = "sum", root: int = 0, *, out=None, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce`."""
        return self._start(*self._vector(REDUCE, buffer, out, op, factor, root))

    def broadcast(self, buffer, root: int = 0):
        """Gives every rank the vector of rank ``root``, in place."""
        call, out = self._vector(BROADCAST, buffer, None, "sum", 1.0, root)
        self._run(call)
        return out

    def broadcast_start(self, buffer, root: int = 0) -> Work:
        """Starts :meth:`broadcast`."""
        return self._start(*self._vector(BROADCAST, buffer, None, "sum", 1.0, root))

    def scan(self, buffer, op: str = "sum", *, out=None):
        """Gives rank r the reduction of the vectors of ranks 0 to r."""
        if callable(op):
            return operators.scan(self, buffer, op, out, True)
        call, out = self._vector(SCAN, buffer, out, op, 1.0)
        self._run(call)
        return out

    def scan_start(self, buffer, op: str = "sum", *, out=None) -> Work:
        """Starts :meth:`scan`."""
        return self._start(*self._vector(SCAN, buffer, out, op, 1.0))

    def exscan(self, buffer, op: str = "sum", *, out=None):
        """Gives rank r the reduction of the vectors of ranks 0 to r - 1; rank 0's ``out`` is unchanged."""
        if callable(op):
            return operators.scan(self, buffer, op, out, False)
        call, out = self._vector(EXSCAN, buffer, out, op, 1.0)
        self._run(call)
        return out

    def exscan_start(self, buffer, op: str = "sum", *, out=None) -> Work:
        """Starts :meth:`exscan`."""
        return self._start(*self._vector(EXSCAN, buffer, out, op, 1.0))

    # Collectives over blocks: one buffer, or both, has a block per rank.

    def all_gather(self, input, out=None):
        """Puts the blocks of all ranks one after another into ``out``, which has ``world_size`` times the elements.

        Without ``out`` it returns a new NumPy array with the ranks as its first axis.
        """
        call, out = self._blocks(ALL_GATHER, input, self._room(input, out, self.world_size))
        self._run(call)
        return out

    def all_gather_start(self, input, out=None) -> Work:
        """Starts :meth:`all_gather`; :meth:`Work.wait` returns ``out``."""
        return self._start(*self._blocks(ALL_GATHER, input, self._room(input, out, self.world_size)))

    def reduce_scatter(self, input, out, op: str = "sum", *, factor: float = 1.0):
        """Gives rank r the reduction of block r of all ranks. ``input`` has ``world_size`` times the elements of ``out``."""
        if callable(op):
            check_no_factor(op, factor)
            return operators.reduce_scatter(self, input, op, out)
        call, out = self._blocks(REDUCE_SCATTER, input, out, op, factor)
        self._run(call)
        return out

    def reduce_scatter_start(self, input, out, op: str = "sum", *, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce_scatter`."""
        return self._start(*self._blocks(REDUCE_SCATTER, input, out, op, factor))

    def all_to_all(self, input, out=None):
        """Sends block s to each rank s and receives a block from each. Both buffers have ``world_size`` blocks; ``out`` may be
        ``input``."""
        call, out = self._blocks(ALL_TO_ALL, input, self._room(input, out, 1))
        self._run(call)
        return out

    def all_to_all_start(self, input, out=None) -> Work:
        """Starts :meth:`all_to_all`."""
        return self._start(*self._blocks(ALL_TO_ALL, input, self._room(input, out, 1)))

    def gather(self, input, out=None, root: int = 0):
        """Gives rank ``root`` the blocks of all ranks; the other ranks need no ``out`` and get ``None``."""
        call, out = self._gather(input, out, root)
        self._run(call)
        return out

    def gather_start(self, input, out=None, root: int = 0) -> Work:
        """Starts :meth:`gather`."""
        return self._start(*self._gather(input, out, root))

    def scatter(self, input, out, root: int = 0):
        """Gives rank r block r of rank ``root``; the other ranks need no ``input``."""
        call, out = self._scatter(input, out, root)
        self._run(call)
        return out

    def scatter_start(self, input, out, root: int = 0) -> Work:
        """Starts :meth:`scatter`."""
        return self._start(*self._scatter(input, out, root))

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self._run(BARRIER_CALL)

    def barrier_start(self) -> Work:
        """Starts a barrier: the work is done once every rank has started it."""
        return self._start(BARRIER_CALL, None)

    # Blocks of unequal length, one after another; counts are in elements.

    def all_gather_v(self, input, out, counts: Counts):
        """As :meth:`all_gather` with ``counts[r]`` elements of rank r. All ranks pass the same counts."""
        return self._run_v(*self._all_gather_v(input, out, counts))

    def all_gather_v_start(self, input, out, counts: Counts) -> Work:
        """Starts :meth:`all_gather_v`."""
        return self._start_v(*self._all_gather_v(input, out, counts))

    def reduce_scatter_v(self, input, out, counts: Counts, op: str = "sum", *, factor: float = 1.0):
        """As :meth:`reduce_scatter` with ``counts[r]`` elements in block r. All ranks pass the same counts."""
        return self._run_v(*self._reduce_scatter_v(input, out, counts, op, factor))

    def reduce_scatter_v_start(self, input, out, counts: Counts, op: str = "sum", *, factor: float = 1.0) -> Work:
        """Starts :meth:`reduce_scatter_v`."""
        return self._start_v(*self._reduce_scatter_v(input, out, counts, op, factor))

    def gather_v(self, input, out=None, counts: Counts = (), root: int = 0):
        """As :meth:`gather` with ``counts[r]`` elements of rank r; ``out`` and ``counts`` are used on rank ``root`` only."""
        return self._run_v(*self._gather_v(input, out, counts, root))

    def gather_v_start(self, input, out=None, counts: Counts = (), root: int = 0) -> Work:
        """Starts :meth:`gather_v`."""
        return self._start_v(*self._gather_v(input, out, counts, root))

    def scatter_v(self, input, out, counts: Counts = (), root: int = 0):
        """As :meth:`scatter` with ``counts[r]`` elements for rank r; ``input`` and ``counts`` are used on rank ``root`` only."""
        return self._run_v(*self._scatter_v(input, out, counts, root))

    def scatter_v_start(self, input, out, counts: Counts = (), root: int = 0) -> Work:
        """Starts :meth:`scatter_v`."""
        return self._start_v(*self._scatter_v(input, out, counts, root))

    def all_to_all_v(self, input, send_counts: Counts, out, recv_counts: Counts):
        """As :meth:`all_to_all` with ``send_counts[s]`` elements to rank s and ``recv_counts[r]`` from rank r."""
        return self._run_v(*self._all_to_all_v(input, send_counts, out, recv_counts))

    def all_to_all_v_start(self, input, send_counts: Counts, out, recv_counts: Counts) -> Work:
        """Starts :meth:`all_to_all_v`."""
        return self._start_v(*self._all_to_all_v(input, send_counts, out, recv_counts))

    # Messages between two ranks. The i-th send from one rank to another with a tag matches the i-th receive of that pair
    # with that tag, blocking or started.

    def send(self, buffer, to: int, tag: int = 0) -> None:
        """Sends to rank ``to``; blocks until the buffer may be changed, possibly before the message has been received."""
        self._run_transfers([self._transfer(True, buffer, to, tag)])

    def send_start(self, buffer, to: int, tag: int = 0) -> Work:
        """Starts :meth:`send`."""
        return self._start_transfer(True, buffer, to, tag)

    def recv(self, buffer, source: int | None = None, tag: int = 0) -> int:
        """Receives exactly as many elements as ``buffer`` has, from rank ``source``, or with ``None`` from whichever rank sends first.

        Returns the source.
        """
        return self._run_transfers([self._transfer(False, buffer, source, tag)])[0]

    def recv_start(self, buffer, source: int | None = None, tag: int = 0) -> Work:
        """Starts :meth:`recv`; :attr:`Work.source` is known when it is complete."""
        return self._start_transfer(False, buffer, source, tag)

    def send_recv(self, send, to: int, recv, source: int | None, tag: int = 0):
        """Sends and receives at the same time, so that rings and exchanges cannot deadlock. Returns the buffer ``recv``.

        Both messages have the tag. If ``source`` is ``None``, the message may come from any rank.
        """
        return self.batch([("send", send, to, tag), ("recv", recv, source, tag)])[1]

    def batch(self, transfers: Sequence[tuple]) -> list:
        """Runs any number of ``("send", buffer, to)`` and ``("recv", buffer, source)`` together; no pattern of them deadlocks.

        A tag may follow as a fourth item. With ``None`` as its source, a receive takes the first message that comes. Returns the
        buffers, in order.
        """
        found = []
        for kind, buffer, peer, *tag in transfers:
            if kind not in ("send", "recv"):
                raise Usage(f"a transfer of kind '{kind}'; use 'send' or 'recv'")
            found.append(self._transfer(kind == "send", buffer, peer, *(tag or (0,))))
        self._run_transfers(found)
        return [transfer[1] for transfer in transfers]

    # Communicators of some of the ranks, and the end.

    def _next(self, comm: _kolo.Comm) -> Communicator:
        """Returns a communicator that was made from this one."""
        return Communicator(comm, self.timeout)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the communicator: ranks that give the same ``color`` form a new one, ordered by ``key`` and then by rank.

        A rank that gives ``None`` gets ``None``. Keys may be negative. Every rank calls it; blocks until all have. If one rank
        passes a wrong argument, all ranks raise :class:`kolo.Usage`.
        """
        part = self._split(color, key)
        return None if part is None else self._next(part)

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Makes a communicator of the listed ranks, in this order. Only these ranks call it; blocks until all of them have."""
        return self._next(self._comm.group([self._in_range("group", "a rank", rank) for rank in ranks]))

    def dup(self) -> Communicator:
        """Makes a communicator of the same ranks, whose calls are independent of this one's; for libraries. Every rank calls it;
        blocks until all have."""
        return self._next(self._comm.duplicate())

    def alloc(self, shape, dtype="float64"):
        """Makes a zeroed NumPy array in memory that the other ranks of the host reach directly, so that collectives on it copy less.

        Every rank calls it, with the same size in bytes; blocks until all have. Slices of the array have the same benefit. The memory
        is freed with the last array on it. Raises :class:`kolo.Unsupported` on all ranks if a host lacks the memory.
        """
        try:
            import numpy
        except ImportError:
            raise Usage("alloc makes NumPy arrays, but NumPy is not installed") from None
        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise Usage("an array of objects cannot be in memory that processes share")
        extents = tuple(shape) if hasattr(shape, "__iter__") else (index(shape),)
        count = 1
        for extent in extents:
            count *= index(extent)
        if count < 0 or any(extent < 0 for extent in extents):
            raise Usage(f"the shape {extents} has a negative extent")
        lent = Lent(self._comm.alloc(count * dtype.itemsize))
        return numpy.asarray(lent).view(dtype).reshape(extents)

    def abort(self, reason: str = "the program gave up") -> None:
        """Aborts the communicator: every call in progress on any rank, and every later one, fails with ``reason``. Returns at once."""
        self._comm.abort(reason)

    # Going on after a loss.

    def revoke(self) -> None:
        """Revokes the communicator on all ranks: every call, in progress or later, fails, except :meth:`agree` and :meth:`shrink`.
        Returns at once."""
        self._comm.revoke()

    def agree(self, flags: int = 1, *, timeout: float | None = None) -> tuple[int, list[int]]:
        """Agrees with all live ranks; returns the bitwise AND of the ``flags`` (64 bits) of all, and the ranks that took part.

        Works on a communicator that has failed. All live ranks call it, and they make their calls of it and of :meth:`shrink` in the
        same order; all get the same answer. Blocks until all have called. With a ``timeout`` (seconds), live ranks that have not
        called by then count as having set no flag, and get the same answer when they call.
        """
        if not 0 <= flags < 1 << 64:
            raise Usage(f"flags are {flags}, but must be 0 or more and below 2^64")
        return self._comm.agree(flags, timeout)

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """Makes a communicator of the live ranks, in their order. All of them call it; blocks until all have.

        Works on a communicator that has failed, and on a healthy one, which stays as it is. Raises :class:`kolo.Fenced` if the
        others have gone on without this rank, and :class:`kolo.Minority` if too few ranks answer. With a ``timeout`` (seconds), all
        ranks raise :class:`kolo.Aborted` if a live one has not called by then; they may call it again.
        """
        return self._next(self._comm.shrink(timeout))

    @property
    def epoch(self) -> int:
        """How many times the group has changed: each :meth:`shrink` and :meth:`grow` adds one."""
        return self._comm.epoch()

    @property
    def ranks_before(self) -> list[int | None]:
        """For each rank, its rank in the previous communicator, from which :meth:`shrink` or :meth:`grow` made this one; ``None`` for
        newcomers."""
        return self._comm.ranks_before()

    def accept(self) -> str:
        """Returns an invitation for newcomers: a text that the program passes on by any means. Any process that has it can join, so
        keep it secret.

        A newcomer joins by ``kolo.init(join=text)`` or the variable ``KOLO_JOIN``, and waits at this rank's port, or at
        another rank's if this one dies, until the members call :meth:`grow` or :meth:`replace`. Any rank may call it; returns at once.
        """
        return self._comm.accept()

    @property
    def waiting(self) -> int:
        """How many newcomers wait at this rank's port. Others may wait at the ports of other ranks."""
        return self._comm.waiting()[0]

    def grow(self, most: int) -> Communicator:
        """Makes a communicator of the live ranks and of waiting newcomers, of at most ``most`` ranks in all.

        Ranks keep their order, and newcomers come last. All live ranks call it; blocks until all have. This communicator stays as it
        is. Newcomers that die meanwhile are left out. After :class:`kolo.Fenced` and :class:`kolo.Minority` this rank must stop, since
        the others may have gone on without it. Any other exception is raised on all ranks, and they may call it again.
        """
        if most < 1:
            raise Usage(f"most is {most}, but must be 1 or more")
        return self._next(self._comm.grow(self._in_range("grow", "most", most), False))

    def replace(self) -> Communicator:
        """As :meth:`grow`, but newcomers take the :attr:`slots` of ranks that have been lost."""
        return self._next(self._comm.replace())

    @property
    def slots(self) -> list[int]:
        """The slot of each rank: its rank in the first communicator of the group, or the slot of the rank that it has replaced."""
        return self._comm.slots()

    def close(self) -> None:
        """Leaves the communicator. Waits up to five seconds until the data of started calls has left. Closing twice does nothing."""
        self._comm.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kolo.Communicator rank {self.rank} of {self.world_size}>"


_kolo.quicken(Communicator)
