"""Steps that outlive losses: those that are left repeat what failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .communicator import Communicator
from .errors import Aborted, Error, Minority, Mismatch, PeerLost, Revoked, Timeout, Transport, Usage

T = TypeVar("T")

#: This rank's step succeeded.
_DONE = 1

#: This rank's step succeeded, or failed because of what became of the communicator: it may be repeated.
_MAY_REPEAT = 2

#: Errors after which the communicator is beyond use.
_FATAL = (Aborted, Mismatch, PeerLost, Timeout, Transport)


class Survivors:
    """A group of ranks that goes on when some of them die: a communicator that is replaced by one of the ranks that live.

    What is called by :meth:`run` succeeds on all ranks that live, or on none. If a rank was lost, those that live repeat it among
    themselves until it succeeds. So the results are of the members that :attr:`comm` then has, and all members have the same. All
    ranks make one, and call the same methods in the same order. After a step they agree, which costs one round over TCP. ::

        group = kolo.Survivors(kolo.init())
        for step in range(1000):
            def gradient(comm):
                own = numpy.stack([gradient_of(shard) for shard in comm.own_shards(64)])
                return comm.all_reduce_shards(own, 64, "avg")
            weights -= 0.1 * group.run(gradient)

    ``at_least`` is how many ranks go on; fewer give up with :class:`kolo.Minority`. It is the same on all ranks.
    """

    __slots__ = ("_at_least", "_comm")

    def __init__(self, comm: Communicator, at_least: int = 1) -> None:
        if at_least < 1:
            raise Usage(f"at_least is {at_least}, but must be 1 or more")
        self._comm = comm
        self._at_least = at_least

    @property
    def comm(self) -> Communicator:
        """The members of the last step. Calls on it are on their own: they may fail on some ranks and succeed on others."""
        return self._comm

    def run(self, step: Callable[[Communicator], T]) -> T:
        """Runs ``step(comm)`` on the members until all of them have succeeded; the others have died. Returns what it returns.

        After a loss it runs again, on a new communicator, so it must not change what it starts from: calls in it have an ``out``, or
        work on copies. Exceptions that are no loss, such as :class:`kolo.Usage` or the program's own, are not repeated: the
        rank raises its own, and the others raise :class:`kolo.Revoked`. The members can go on with further steps.
        """
        while True:
            problem = None
            try:
                result = step(self._comm)
            except _FATAL as error:
                problem, vote = error, _MAY_REPEAT
            except Exception as error:
                problem, vote = error, 0
            else:
                vote = _DONE | _MAY_REPEAT
            if problem is not None:
                # Others may wait for ranks that have come here.
                self._comm.revoke()
            flags, _ = self._comm.agree(vote)
            if flags & _DONE:
                return result
            old, before = self._comm, self._comm.world_size
            self._comm = old.shrink()
            old.close()
            left = self._comm.world_size
            if not flags & _MAY_REPEAT or left == before:
                raise problem or self._gave_up(Revoked, "the step failed on another rank, whose own error says why")
            if left < self._at_least:
                raise self._gave_up(
                    Minority, f"{left} of {before} ranks are left, and {self._at_least} are the least that go on"
                )

    def all_reduce(self, buffer, op: str = "sum", *, out=None):
        """:meth:`Communicator.all_reduce` as a step, into ``out`` or a new array: the same on all members."""
        return self.run(lambda comm: comm.all_reduce(buffer, op, out=comm._room(buffer, out, 1)))

    def close(self) -> None:
        """Leaves."""
        self._comm.close()

    def __enter__(self) -> Survivors:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _gave_up(self, kind: type[Error], reason: str) -> Error:
        return kind(f"rank {self._comm.rank}, run: {reason}")
