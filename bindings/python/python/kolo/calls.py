"""Turns the arguments that users pass into those of the compiled module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import index

from . import _kolo, memory
from .errors import Usage
from .memory import NOTHING, Memory
from .numbers import ALL_GATHER, ALL_TO_ALL, BARRIER, BROADCAST, GATHER, REDUCE, REDUCE_SCATTER, SCATTER, SUM
from .work import Call, Work, operator, started

#: The number of elements in each rank's block.
Counts = Sequence[int]


class Calls:
    """Base class of :class:`kolo.Communicator`: checks arguments and makes the calls."""

    __slots__ = ()

    _comm: _kolo.Comm
    timeout: float
    rank: int
    world_size: int

    def _find(self, what: str, obj: object, writable: bool) -> Memory:
        return memory.find(what, obj, writable, self._comm)

    def _in_range(self, operation: str, what: str, value: int, bits: int = 32) -> int:
        """Returns the number if the compiled module can take it."""
        if 0 <= value < 1 << bits:
            return value
        problem = f"rank {self.rank}, {operation}: {what} is {value}, but must be 0 or more, and below 2^{bits}"
        raise Usage(problem, rank=self.rank, operation=operation)

    def _run(self, call: Call) -> None:
        self._comm.run(call.arguments, self.timeout)
        memory.copy_back(call.backs)

    def _start(self, call: Call, out) -> Work:
        return started(self._comm.start(call.arguments, call.owner), out, self.timeout, call.backs)

    def _vector(self, collective: int, buffer, out, op: str, factor: float, root: int = 0) -> tuple[Call, object]:
        in_place = out is None or out is buffer
        out = buffer if in_place else out
        # The other ranks of a reduce only read. But the root refuses a scalar, and mostly runs the same line.
        writes = collective != REDUCE or self.rank == root
        if in_place:
            memory.refuse_scalar("the buffer", buffer)
        input = self._find("the buffer", buffer, in_place and writes)
        output = input if in_place else self._find("out", out, writes)
        number = operator(op, factor)
        if collective != BROADCAST:
            input.check_op(number)
        if input.count != output.count or input.type != output.type:
            raise Usage(
                f"the input has {input.elements} elements of '{input.name}', but out has {output.elements} of "
                f"'{output.name}'; they must agree"
            )
        return Call(collective, input, output if writes else NOTHING, input.count, number, factor, root), out

    def _blocks(
        self, collective: int, input, out, op: str = "sum", factor: float = 1.0, root: int = 0
    ) -> tuple[Call, object]:
        from_, to = self._find("the input", input, False), self._find("out", out, True)
        number = operator(op, factor)
        if collective == REDUCE_SCATTER:
            from_.check_op(number)
        ranks = self.world_size
        count = from_.count if collective in (ALL_GATHER, GATHER) else to.count
        if collective == ALL_TO_ALL:
            # Whole elements of the user's, which may be several of Kolo's.
            count = from_.elements // ranks * from_.units
        needs_from = count if collective in (ALL_GATHER, GATHER) else count * ranks
        needs_to = count if collective in (REDUCE_SCATTER, SCATTER) else count * ranks
        self._expect("the input", from_, needs_from)
        self._expect("out", to, needs_to)
        self._same_type(from_, to)
        return Call(collective, from_, to, count, number, factor, root), out

    def _gather(self, input, out, root: int) -> tuple[Call, object]:
        if self.rank == root:
            return self._blocks(GATHER, input, self._room(input, out, self.world_size), root=root)
        from_ = self._find("the input", input, False)
        return Call(GATHER, from_, NOTHING, from_.count, SUM, 1.0, root), None

    def _scatter(self, input, out, root: int) -> tuple[Call, object]:
        if self.rank == root:
            return self._blocks(SCATTER, input, out, root=root)
        to = self._find("out", out, True)
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
        """Returns the arguments of a call with unequal blocks, the owners of its memory, its output, and the arrays to copy back.

        Counts of ``None`` mean one block as long as the buffer.
        """
        from_ = NOTHING if input is None else self._find("the input", input, False)
        to = NOTHING if out is None else self._find("out", out, True)
        number = operator(op, factor)
        if collective == REDUCE_SCATTER:
            from_.check_op(number)
        if from_ is not NOTHING and to is not NOTHING:
            self._same_type(from_, to)
        like = to if from_ is NOTHING else from_
        name = _kolo.COLLECTIVES[collective]
        self._in_range(name, "root", root)

        def scaled(counts) -> list[int]:
            # Counts may be NumPy's integers, whose products and sums can overflow.
            return [self._in_range(name, "a count", index(count), 48) * like.units for count in counts]

        inputs = [from_.count] if input_counts is None else scaled(input_counts)
        outputs = [to.count] if output_counts is None else scaled(output_counts)
        self._expect("the input", from_, sum(inputs))
        self._expect("out", to, sum(outputs))
        arguments = (collective, from_.address, inputs, to.address, outputs, like.type, number, factor, root)
        return arguments, (from_.owner, to.owner), out, (to.back,) if to.back else ()

    def _run_v(self, arguments, _owner, out, backs):
        self._comm.run_v(arguments, self.timeout)
        memory.copy_back(backs)
        return out

    def _start_v(self, arguments, owner, out, backs) -> Work:
        return started(self._comm.start_v(arguments, owner), out, self.timeout, backs)

    def _transfer(self, send: bool, buffer, peer: int | None, tag: int) -> tuple[tuple, Memory]:
        found = self._find("the buffer", buffer, not send)
        for what, value in (("the other rank", peer), ("tag", tag)):
            if value is not None:
                self._in_range("send" if send else "receive", what, value)
        return (send, peer, found.address, found.count * memory.SIZES[found.type], found.type, tag), found

    def _start_transfer(self, send: bool, buffer, peer: int | None, tag: int) -> Work:
        transfer, found = self._transfer(send, buffer, peer, tag)
        backs = (found.back,) if found.back else ()
        return started(self._comm.start_transfer(transfer, found.owner), buffer, self.timeout, backs)

    def _run_transfers(self, transfers: list[tuple[tuple, Memory]]) -> list[int | None]:
        """Runs messages together; returns the sources of the received ones."""
        sources = self._comm.transfer([transfer for transfer, _ in transfers], self.timeout)
        memory.copy_back(found.back for _, found in transfers if found.back)
        return sources

    def _split(self, color, key) -> _kolo.Comm | None:
        """Splits, and raises a wrong argument of this rank on all ranks: otherwise they would wait for this rank, and later splits
        would not match."""
        try:
            color = None if color is None else index(color)
            key = index(key)
        except TypeError:
            problem = f"color is {color!r} and key {key!r}, but must be None or an integer, and an integer"
            return self._comm.refuse_split(problem)
        if color is not None and not 0 <= color <= 0xFFFF_FFFF:
            return self._comm.refuse_split(f"color is {color}, but must be None, or 0 or more and below 2^32")
        if not -(2**63) <= key < 2**63:
            return self._comm.refuse_split(f"key is {key}, but must fit into 64 bits")
        return self._comm.split(color, key)

    def _share_memory(self, one, other) -> bool:
        """Returns whether two buffers overlap, or arrays lie between each other's elements."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(one, numpy.ndarray) and isinstance(other, numpy.ndarray):
            return numpy.may_share_memory(one, other)
        found = [memory.find("the buffer", buffer, False, self._comm) for buffer in (one, other)]
        (begin, end), (first, last) = ((m.address, m.address + m.count * memory.SIZES[m.type]) for m in found)
        return begin < last and first < end

    def _room(self, input, out, blocks: int):
        """Returns ``out``, or a new array with room for ``blocks`` blocks like ``input``."""
        if out is not None:
            return out
        try:
            import numpy
        except ImportError:
            raise Usage("without NumPy, out must be given") from None
        if getattr(input, "__cuda_array_interface__", None) is not None:
            raise Usage("the input is on a GPU, where Kolo cannot make arrays; out must be given")
        # numpy.asarray would treat bytes as a string.
        input = numpy.frombuffer(input, numpy.uint8) if isinstance(input, bytes) else numpy.asarray(input)
        return numpy.empty(input.shape if blocks == 1 else (blocks, *input.shape), input.dtype)

    def _shard_room(self, input, out, own: int):
        """Returns ``out``, or a new array with room for one of the ``own`` vectors in ``input``."""
        if out is not None:
            return out
        room = self._room(input, None, 1)
        if room.ndim > 0 and room.shape[0] == own:
            # An array, even if a shard is a single number.
            return room[0, ...].copy()
        if room.size % own != 0:
            raise Usage(f"the input has {room.size} elements, which are not {own} shards of equal length")
        return room.reshape(-1)[: room.size // own].copy()

    @staticmethod
    def _shards(shards) -> int:
        shards = index(shards)
        if not 1 <= shards <= 0xFFFF_FFFF:
            raise Usage(f"{shards} shards were given; 1 to 16384 are supported")
        return shards

    def _count(self, what: str, counts: Counts) -> int:
        if len(counts) != self.world_size:
            raise Usage(f"{len(counts)} {what} were given, but one per rank is needed: {self.world_size}")
        return counts[self.rank]

    @staticmethod
    def _expect(what: str, found: Memory, count: int) -> None:
        if found.count != count:
            expected = count / found.units if count % found.units else count // found.units
            raise Usage(f"{what} has {found.elements} elements, but must have {expected}")

    @staticmethod
    def _same_type(one: Memory, other: Memory) -> None:
        if one.type != other.type or one.units != other.units:
            raise Usage(f"the input holds elements of '{one.name}', but out of '{other.name}'; they must agree")


class Lent:
    """Symmetric memory in the form that NumPy accepts. The arrays made of it keep it alive."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: _kolo.Symmetric) -> None:
        self._memory = memory
        self.__array_interface__ = {"data": (memory.address, False), "shape": (memory.bytes,), "typestr": "|u1", "version": 3}


BARRIER_CALL = Call(BARRIER, NOTHING, NOTHING, 0, SUM, 1.0, 0)
