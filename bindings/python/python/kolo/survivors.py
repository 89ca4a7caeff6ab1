"""Steps that survive the loss of ranks: the ranks that are left repeat a step that failed."""

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

#: This rank's step succeeded, or failed because the communicator failed: it may be repeated.
_MAY_REPEAT = 2

#: No newcomer waits at this rank's port.
_NOBODY_WAITS = 4

#: This rank has reached the end of the step; ranks that ran out of time may not have.
_IS_HERE = 8

#: No newcomer waits at this rank's port for a copy of its state.
_NOBODY_ASKS = 16

#: This rank's time for the step was not over when it reached the end. Otherwise no time is left to repeat it.
_IS_IN_TIME = 32

#: What all ranks must have set for a step with a time-out to be repeated.
_REPEATS = _MAY_REPEAT | _IS_HERE | _IS_IN_TIME


class Change(NamedTuple):
    """How the members of a group have changed."""

    #: How many times the group has changed, this change included.
    epoch: int
    #: The ranks that have left, as numbered in the previous communicator. Empty on a newcomer, which does not know them.
    left: list[int]
    #: The ranks that have come, as numbered now.
    came: list[int]
    #: This rank's number now.
    rank: int
    #: The number of ranks now.
    world_size: int


_FAILED = "the step failed on another rank; see that rank's own error for the reason"

#: Errors after which the communicator cannot be used any more.
_FATAL = (Aborted, Mismatch, PeerLost, Timeout, Transport)

#: The code of an :class:`Aborted` that says that the time was over, on this rank or another.
_OUT_OF_TIME = "K0703"


class Survivors:
    """A group of ranks that goes on when some of them die. It replaces its communicator by one of the live ranks after a loss.

    A step that :meth:`run` calls succeeds on all live ranks or on none. If a rank is lost, the live ranks repeat the step among
    themselves until it succeeds. So all members have the same results, which are those of the members that :attr:`comm` then has.
    All ranks make one, and call the same methods in the same order. After a step they agree, which costs one round over TCP. ::

        group = kolo.Survivors(kolo.init())
        for step in range(1000):
            def gradient(comm):
                own = numpy.stack([gradient_of(shard) for shard in comm.own_shards(64)])
                return comm.all_reduce_shards(own, 64, "avg")
            weights -= 0.1 * group.run(gradient)

    ``at_least`` is the smallest number of ranks that go on; fewer fail with :class:`kolo.Minority`. ``up_to`` is the
    largest number to which :meth:`admit` lets the group grow. Both are the same on all ranks. The defaults are MIN and MAX of ``kolo run --elastic
    MIN:MAX``, without it 1 and 0 (no newcomers). ``on_change(change)`` is called when the members have changed, before the step
    begins (again); on a newcomer before its first step.
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
        # Newcomers wait for a copy of the state, as all have agreed after the last step.
        self._is_asked = False
        # A step ended at its time limit, so the members make another communicator before the next step.
        self._is_spent = False
        self._news = _change(0, comm) if comm.ranks_before[comm.rank] is None else None

    @property
    def comm(self) -> Communicator:
        """The communicator of the members of the last step. Calls on it are no steps: they may fail on some ranks and succeed on
        others."""
        return self._comm

    def run(self, step: Callable[[Communicator], T], *, timeout: float | None = None) -> T:
        """Runs ``step(comm)`` until it has succeeded on all members that are alive; returns its value.

        After a loss the step runs again, on a new communicator, so it must not change its own inputs: calls in it have an ``out``, or
        work on copies. An exception that is not a loss, such as :class:`kolo.Usage` or the program's own, is not repeated: the rank
        where it happened raises it, and the others raise :class:`kolo.Revoked`. The members can go on with further steps. The same
        holds for :class:`KeyboardInterrupt`. A rank that raises :class:`SystemExit` leaves: the others repeat the step without it.

        With a ``timeout`` (seconds, the same on all ranks) the step ends on all ranks after that time: its calls fail, and the others
        no longer wait for a rank that has not finished it. All ranks, a late one too, raise :class:`kolo.Timeout` or
        :class:`kolo.Aborted`. They can go on with the next step, which makes a new communicator and waits for late ranks until its
        own time-out.
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
            except SystemExit:
                # This process ends, and is lost to the others like any that ends: they repeat the step.
                raise
            except BaseException as error:
                # Also an interrupt or a cancelled task, after which this process may live on.
                problem, vote = error, 0
            else:
                vote = _DONE | _MAY_REPEAT
            if problem is not None:
                # Members that are still in the step may wait for this rank.
                self._comm.revoke()
            _, any_fits, is_asked = self._comm._comm.waiting()
            if self._comm.world_size >= self._up_to or not any_fits:
                vote |= _NOBODY_WAITS
            if not is_asked:
                vote |= _NOBODY_ASKS
            if end is None or time.monotonic() < end:
                vote |= _IS_IN_TIME
            flags, there = self._comm.agree(vote | _IS_HERE, timeout=_left(end))
            self._is_due = flags & (_NOBODY_WAITS | _IS_HERE) == _IS_HERE
            self._is_asked = flags & (_NOBODY_ASKS | _IS_HERE) == _IS_HERE
            if flags & _DONE:
                return result
            before = self._comm.world_size
            self._is_spent = end is not None
            repeats = flags & _REPEATS == _REPEATS and len(there) < before
            if self._is_spent and not repeats:
                # A late rank comes to the next step too, so nothing waits for it here. All ranks decide from the same flags.
                is_late = not flags & _IS_HERE or flags & (_MAY_REPEAT | _IS_IN_TIME) == _MAY_REPEAT
                if problem is None and is_late:
                    problem = self._gave_up(
                        Aborted, "the step was abandoned: a live rank did not finish it in time"
                    )
                raise problem or self._gave_up(Revoked, _FAILED)
            try:
                self._become(self._comm.shrink(timeout=_left(end)))
            except Aborted as error:
                if end is None or problem is None or error.code != _OUT_OF_TIME:
                    raise
                # The time ran out while the members agreed. The step's own error says more.
                raise problem from error
            if not flags & _MAY_REPEAT or self._comm.world_size == before:
                raise problem or self._gave_up(Revoked, _FAILED)
            self._check_number(before)

    def admit(self) -> None:
        """Takes in waiting newcomers between two steps, if there are fewer ranks than ``up_to``.

        Newcomers first take the slots of ranks that have been lost. Costs nothing if nobody waits. All members call it at the same point
        of the program; a newcomer begins there, so its own first call does nothing. A failure leaves the members as they are; the
        newcomers can be admitted later.
        """
        if self._is_spent or not self._is_due:
            return
        self._is_due = False
        try:
            self._become(self._comm._next(self._comm._comm.grow(self._up_to, True)))
        except (Fenced, Minority):
            raise
        except (*_FATAL, Join) as error:
            warnings.warn(f"rank {self._comm.rank}: newcomers were not admitted; they may try again: {error}", stacklevel=2)

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
        """Runs :meth:`Communicator.all_reduce` as a step, into ``out`` or a new array; all members get the same result.

        Raises :class:`kolo.Usage` if ``out`` and ``buffer`` share memory: a step that is repeated needs its input.
        """

        def step(comm):
            if out is not None and comm._share_memory(buffer, out):
                raise Usage("out shares memory with the input, which a repeated step needs; give it memory of its own")
            return comm.all_reduce(buffer, op, out=comm._room(buffer, out, 1))

        return self.run(step, timeout=timeout)

    def close(self) -> None:
        """Leaves the group."""
        self._comm.close()

    def __enter__(self) -> Survivors:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _check_number(self, before: int) -> None:
        left = self._comm.world_size
        if left < self._at_least:
            raise self._gave_up(
                Minority, f"only {left} of {before} ranks are left, and at least {self._at_least} are needed to go on"
            )

    def _gave_up(self, kind: type[Error], reason: str) -> Error:
        return kind(f"rank {self._comm.rank}, run: {reason}")


def _left(end: float | None) -> float | None:
    """Returns the seconds that are left until ``end``."""
    return None if end is None else max(0.0, end - time.monotonic())


def _change(before: int, now: Communicator) -> Change:
    """Returns the change from a communicator of ``before`` ranks to ``now``."""
    ranks_before = now.ranks_before
    came = [rank for rank, of in enumerate(ranks_before) if of is None]
    left = [rank for rank in range(before) if rank not in ranks_before]
    return Change(now.epoch, left, came, now.rank, now.world_size)
