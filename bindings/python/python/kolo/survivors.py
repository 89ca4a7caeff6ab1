"""Steps that outlive losses: those that are left repeat what failed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from .communicator import Communicator
from .errors import Aborted, Error, Fenced, Join, Minority, Mismatch, PeerLost, Revoked, Timeout, Transport, Usage

T = TypeVar("T")

#: This rank's step succeeded.
_DONE = 1

#: This rank's step succeeded, or failed because of what became of the communicator: it may be repeated.
_MAY_REPEAT = 2

#: Nobody waits at this rank's door.
_NOBODY_WAITS = 4

#: This rank has come to the end of the step, which not all have whose time was over.
_IS_HERE = 8

#: Nobody waits at this rank's door for a copy of its state.
_NOBODY_ASKS = 16


class Change(NamedTuple):
    """How the members of a group have changed."""

    #: How many times the group has changed, this time too.
    epoch: int
    #: Who has left: ranks in the communicator before. Empty on a newcomer, which does not know.
    left: list[int]
    #: Who has come: ranks now.
    came: list[int]
    #: This rank now.
    rank: int
    #: How many there are now.
    world_size: int


_FAILED = "the step failed on another rank, whose own error says why"

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

    ``at_least`` is how many ranks go on; fewer give up with :class:`kolo.Minority`. ``up_to`` is how many there may be:
    :meth:`admit` takes newcomers in until then. Both are the same on all ranks; if they are not given, ``kolo run --elastic
    MIN:MAX`` says them, and else they are 1 and none. ``on_change(change)`` is called when the members have
    changed, before the step begins (again); on a newcomer before its first step.
    """

    __slots__ = ("_at_least", "_comm", "_is_asked", "_is_due", "_is_spent", "_news", "_on_change", "_up_to")

    def __init__(
        self,
        comm: Communicator,
        at_least: int | None = None,
        up_to: int | None = None,
        on_change: Callable[[Change], object] | None = None,
    ) -> None:
        least, most = comm._comm.bounds() or (1, 0)
        at_least = least if at_least is None else at_least
        up_to = most if up_to is None else up_to
        if at_least < 1:
            raise Usage(f"at_least is {at_least}, but must be 1 or more")
        if up_to < 0:
            raise Usage(f"up_to is {up_to}, but must be 0 or more")
        self._comm = comm
        self._at_least = at_least
        self._up_to = up_to
        self._on_change = on_change
        # Newcomers wait, as all have agreed after the last step.
        self._is_due = False
        # They wait for a copy of the state, the same.
        self._is_asked = False
        # A step was given up at its time limit: the members make another communicator before the next.
        self._is_spent = False
        self._news = _change(0, comm) if comm.ranks_before[comm.rank] is None else None

    @property
    def comm(self) -> Communicator:
        """The members of the last step. Calls on it are on their own: they may fail on some ranks and succeed on others."""
        return self._comm

    def run(self, step: Callable[[Communicator], T], *, timeout: float | None = None) -> T:
        """Runs ``step(comm)`` on the members until all of them have succeeded; the others have died. Returns what it returns.

        After a loss it runs again, on a new communicator, so it must not change what it starts from: calls in it have an ``out``, or
        work on copies. Exceptions that are no loss, such as :class:`kolo.Usage` or the program's own, are not repeated: the
        rank raises its own, and the others raise :class:`kolo.Revoked`. The members can go on with further steps.

        With a ``timeout`` (seconds, the same on all ranks) the step is over by then on all of them: whatever it calls fails, and who has
        not come to its end is waited for no longer. All raise :class:`kolo.Timeout` or :class:`kolo.Aborted`, also a rank that comes
        later, and go on with the next step, which makes a new communicator and waits for the late until its own time is over.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self._is_spent:
            before = self._comm.world_size
            self._become(self._comm.shrink(timeout=_left(end)))
            self._check_number(before)
        while True:
            self._tell()
            problem = None
            try:
                self._comm._comm.limit_calls(_left(end))
                try:
                    result = step(self._comm)
                finally:
                    self._comm._comm.limit_calls(None)
            except _FATAL as error:
                problem, vote = error, _MAY_REPEAT
            except Exception as error:
                problem, vote = error, 0
            else:
                vote = _DONE | _MAY_REPEAT
            if problem is not None:
                # Others may wait for ranks that have come here.
                self._comm.revoke()
            _, any_fits, is_asked = self._comm._comm.waiting()
            if self._comm.world_size >= self._up_to or not any_fits:
                vote |= _NOBODY_WAITS
            if not is_asked:
                vote |= _NOBODY_ASKS
            flags, there = self._comm.agree(vote | _IS_HERE, timeout=_left(end))
            self._is_due = flags & (_NOBODY_WAITS | _IS_HERE) == _IS_HERE
            self._is_asked = flags & (_NOBODY_ASKS | _IS_HERE) == _IS_HERE
            if flags & _DONE:
                return result
            before = self._comm.world_size
            self._is_spent = end is not None
            repeats = flags & _MAY_REPEAT and flags & _IS_HERE and len(there) < before
            if self._is_spent and not repeats:
                # Who is late comes to the next step too, so nothing waits for it here. All ranks see the same bits.
                if problem is None and not flags & _IS_HERE:
                    problem = self._gave_up(
                        Aborted, "the step was given up: a rank that lives had not come to its end in time"
                    )
                raise problem or self._gave_up(Revoked, _FAILED)
            self._become(self._comm.shrink(timeout=_left(end)))
            if not flags & _MAY_REPEAT or self._comm.world_size == before:
                raise problem or self._gave_up(Revoked, _FAILED)
            self._check_number(before)

    def admit(self) -> None:
        """The point between two steps at which newcomers come in, if some wait and there are fewer ranks than ``up_to``.

        They take the slots of ranks that have been lost first. Costs nothing if nobody waits. All members call it at the same point of the
        program; a newcomer begins there, so its own first call does nothing. A failure leaves the members as they are: those
        that wait come in later.
        """
        if self._is_spent or not self._is_due:
            return
        self._is_due = False
        try:
            self._become(Communicator(self._comm._comm.grow(self._up_to, True)))
        except (Fenced, Minority):
            raise
        except (*_FATAL, Join) as error:
            warnings.warn(f"rank {self._comm.rank}: newcomers were not taken in; they may wait again: {error}", stacklevel=2)

    def _become(self, next: Communicator) -> None:
        old, self._comm = self._comm, next
        self._is_spent = False
        self._news = _change(old.world_size, next)
        old.close()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None and self._on_change is not None:
            self._on_change(news)

    def all_reduce(self, buffer, op: str = "sum", *, out=None, timeout: float | None = None):
        """:meth:`Communicator.all_reduce` as a step, into ``out`` or a new array: the same on all members."""
        return self.run(lambda comm: comm.all_reduce(buffer, op, out=comm._room(buffer, out, 1)), timeout=timeout)

    def close(self) -> None:
        """Leaves."""
        self._comm.close()

    def __enter__(self) -> Survivors:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _check_number(self, before: int) -> None:
        left = self._comm.world_size
        if left < self._at_least:
            raise self._gave_up(
                Minority, f"{left} of {before} ranks are left, and {self._at_least} are the least that go on"
            )

    def _gave_up(self, kind: type[Error], reason: str) -> Error:
        return kind(f"rank {self._comm.rank}, run: {reason}")


def _left(end: float | None) -> float | None:
    """Seconds until then."""
    return None if end is None else max(0.0, end - time.monotonic())


def _change(before: int, now: Communicator) -> Change:
    """From a communicator of so many ranks."""
    ranks_before = now.ranks_before
    came = [rank for rank, of in enumerate(ranks_before) if of is None]
    left = [rank for rank in range(before) if rank not in ranks_before]
    return Change(now.epoch, left, came, now.rank, now.world_size)
