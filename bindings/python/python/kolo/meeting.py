"""Meetings: listed members make a new communicator, any number of times, without a store and without a fixed leader.

Members that hold the same list of handles meet at the listener of the list's first member, which must be alive anyway. So no process
outside the list is needed: a former member may be dead or stopped. The program must make the list the same everywhere; after a
loss, :meth:`kolo.Communicator.agree` says which ranks are left.
"""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from . import _kolo
from .listener import Ended, Listener, Unreached, Visit, connect
from .errors import Aborted, Error, Join, Mismatch, PeerLost, Timeout, Transport, Usage
from .handles import Handle

#: Seconds between two checks whether the missing members are alive, and for the answer of one of them.
_LOOK, _ANSWER = 0.25, 1.0

#: Most members that are asked at the same time. Each may take a descriptor for each of its addresses.
_ASKED = 16

#: Seconds for the first attempt to join after all have met; and how many seconds longer the other members wait than the first.
_FIRST_TRY, _GRACE = 1.0, 0.5

#: Errors that may occur because a member has died or is slow.
_AGAIN = (Aborted, Join, PeerLost, Timeout, Transport)


class Meeting:
    """One attempt of the listed members to make a communicator. All of them use the same number, and for this attempt only."""

    def __init__(self, listener: Listener, number: int, handles: list[str], seconds: float) -> None:
        self._listener = listener
        self._number = number
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._members = [Handle.parse(handle) for handle in handles]
        self._digest = hashlib.sha256("\n".join(handles).encode()).hexdigest()
        own = str(listener.handle)
        if not handles:
            raise Usage("reconfigure: there are no handles; at least this process's own is needed")
        if len(set(handles)) != len(handles):
            raise Usage("reconfigure: a handle is in the list twice")
        if own not in handles:
            raise Usage("reconfigure: this process's own handle is not in the list, so it would not be a member")
        self.rank = handles.index(own)

    def join(self, settings: dict[str, str]) -> _kolo.Comm:
        """Blocks until all members have joined. If the meeting fails, raises the reason on all members that have come."""
        with self._listener.changed:
            if self._number in self._listener.refused:
                raise Usage(f"{self._name()}: this uuid was already used; each attempt needs a new one")
        if self.rank == 0:
            used = f"uuid {self._number} was already used"
            try:
                comm = self._lead(settings)
            except BaseException as error:
                # Members that wait, and those that come later, get the same error.
                self._listener.refuse(self._number, f"{used} for a meeting that failed: {error}", **_described(error))
                raise
            self._listener.refuse(self._number, used)
            return comm
        self._listener.refuse(self._number, f"{self._who(self.rank)} takes part, but has another member first in its list")
        return self._follow(settings)

    # The first member.

    def _lead(self, settings: dict[str, str]) -> _kolo.Comm:
        if len(self._members) == 1:
            return self._connected(_Place(self._name()), settings, self._deadline)
        try:
            self._gather()
            return self._join_with_them(settings)
        except Error as error:
            self._dismiss(error=str(error), **_described(error))
            raise

    def _join_with_them(self, settings: dict[str, str]) -> _kolo.Comm:
        """Joins with the members that have come.

        Each attempt has a time limit, and is repeated with a longer one unless a member has died: during an attempt nothing would
        notice the death.
        """
        seconds = _FIRST_TRY + len(self._members) / 64
        while True:
            until = min(time.monotonic() + seconds, self._deadline)

            def publish(notice: bytes) -> None:
                self._tell(notice=notice.hex(), seconds=until - time.monotonic())

            try:
                comm = self._connected(_Place(self._name(), publish=publish), settings, until)
            except _AGAIN as error:
                with self._listener.changed:
                    here = {visitor.said["at"] for visitor in self._listener.visitors.get(self._number, ())}
                if missing := [at for at in range(1, len(self._members)) if at not in here]:
                    raise self._lost(missing[0], "while members joined") from None
                if time.monotonic() >= self._deadline:
                    raise self._failed(error) from None
                seconds *= 2
                continue
            self._dismiss(over=True)
            return comm

    def _tell(self, **what) -> None:
        with self._listener.changed:
            for visitor in self._listener.visitors.get(self._number, ()):
                visitor.tell(self._listener.handle.key, **what)

    def _dismiss(self, **what) -> None:
        with self._listener.changed:
            for visitor in self._listener.visitors.pop(self._number, ()):
                visitor.dismiss(self._listener.handle.key, **what)

    def _gather(self) -> None:
        """Blocks until all have come."""
        listener, ended = self._listener, {}
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(over, ended), name="kolo-looking", daemon=True)
        said = None
        try:
            with listener.changed:
                while True:
                    visitors = listener.visitors.get(self._number, ())
                    self._check(visitors)
                    here = {visitor.said["at"] for visitor in visitors}
                    missing = [at for at in range(1, len(self._members)) if at not in here]
                    if not missing:
                        return
                    if gone := [at for at in missing if at in ended]:
                        raise self._lost(gone[0], ended[gone[0]])
                    if missing != said:
                        self._tell(missing=missing[:256])
                        said = missing
                    left = self._deadline - time.monotonic()
                    if left <= 0:
                        raise self._late(missing)
                    listener.changed.wait(min(left, _LOOK))
                    if looking.ident is None:
                        looking.start()
        finally:
            over.set()

    def _look(self, over: threading.Event, ended: dict[int, str]) -> None:
        """Finds the missing members whose processes have ended, so that the others do not wait for them."""
        while not over.wait(_LOOK):
            with self._listener.changed:
                here = {visitor.said.get("at") for visitor in self._listener.visitors.get(self._number, ())}
            missing = [at for at in range(1, len(self._members)) if at not in here]
            # At the same time, since each that cannot be reached takes the time of an answer.
            with ThreadPoolExecutor(max_workers=_ASKED) as asking:
                # The list raises what a call has raised.
                list(asking.map(lambda at: self._look_at(at, over, ended), missing))

    def _look_at(self, at: int, over: threading.Event, ended: dict[int, str]) -> None:
        if over.is_set():
            return
        try:
            connect(self._members[at], _ANSWER, meeting=self._number).close()
        except Unreached:
            pass
        except Ended as cause:
            with self._listener.changed:
                ended[at] = str(cause)
                self._listener.changed.notify_all()

    def _check(self, visitors) -> None:
        for visitor in visitors:
            at = visitor.said.get("at")
            fits = isinstance(at, int) and 0 < at < len(self._members)
            if visitor.said.get("list") != self._digest or not fits:
                raise Mismatch(
                    f"{self._name()}: {visitor.said.get('who')} came with another list of members. All members must pass "
                    "the same handles in the same order, and different groups must use different uuids"
                )

    # The others.

    def _follow(self, settings: dict[str, str]) -> _kolo.Comm:
        visit = self._arrived()
        missing = cause = None
        try:
            said = visit.greeting
            while said is not None:
                if "error" in said:
                    raise self._told(said)
                if "over" in said:
                    raise Join(f"{self._name()}: the others have joined without this rank: {cause}", rank=self.rank)
                if "notice" in said:
                    place = _Place(self._name(), notice=bytes.fromhex(said["notice"]))
                    try:
                        return self._connected(place, settings, time.monotonic() + said["seconds"] + _GRACE)
                    except _AGAIN as error:
                        cause = error  # the first member says what comes next
                missing = said.get("missing", missing)
                try:
                    said = visit.hear(self._deadline + _GRACE)
                except TimeoutError:
                    raise (self._failed(cause) if cause else self._late([0] if missing is None else missing)) from None
        finally:
            visit.close()
        raise self._lost(0, "its connection broke while members met")

    def _arrived(self) -> Visit:
        said = {"meeting": self._number, "at": self.rank, "list": self._digest, "who": self._who(self.rank)}
        pause = 0.01
        while True:
            left = self._deadline - time.monotonic()
            try:
                return connect(self._members[0], max(left, 0.001), **said)
            except Ended as cause:
                raise self._lost(0, str(cause)) from None
            except Unreached as cause:
                if self._deadline - time.monotonic() <= pause:
                    raise self._late([0], str(cause)) from None
            time.sleep(pause)
            pause = min(pause * 2, _LOOK)

    def _told(self, said: dict) -> Error:
        kind = {"PeerLost": PeerLost, "Timeout": Timeout, "Mismatch": Mismatch}.get(said.get("kind"), Join)
        text = said["error"]
        text = text if text.startswith("reconfigure") else f"{self._name()}: {text}"
        return kind(text, rank=self.rank, operation="reconfigure", peer=said.get("peer"))

    # Both.

    def _connected(self, place: _Place, settings: dict[str, str], until: float) -> _kolo.Comm:
        settings = {**settings, "KOLO_JOIN_TIMEOUT": str(max(until - time.monotonic(), 0.001))}
        comm = _kolo.connect_board(place, self.rank, len(self._members), settings)
        try:
            self._entered(comm, until)
        except BaseException:
            # Not on this thread: the first rank stays for a second, so that the others can leave.
            threading.Thread(target=comm.close, name="kolo-leaving").start()
            raise
        return comm

    def _entered(self, comm: _kolo.Comm, until: float) -> None:
        """Makes sure that all members have the communicator; otherwise none keeps it.

        A member may die when some have the communicator and others do not. The latter would go on with the previous communicator,
        which the former have left.
        """
        if comm.world_size == 1:
            return
        flags, ranks = comm.agree(1, max(until - time.monotonic(), 0.001))
        if missing := sorted(set(range(comm.world_size)) - set(ranks)):
            raise self._lost(missing[0], "while members joined")
        if not flags:
            raise Join(f"{self._name()}: a member joined too late", rank=self.rank)

    def _failed(self, cause: Error) -> Timeout:
        return Timeout(f"{self._name()}: no communicator after {self._seconds:.1f} s: {cause}", rank=self.rank)

    def _late(self, missing: list[int], cause: str = "") -> Timeout:
        names = ", ".join(map(self._who, missing[:4])) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        cause = f" ({cause})" if cause else ""
        return Timeout(
            f"{self._name()}: after {self._seconds:.1f} s, {names} had not come{cause}. Leave out the missing members, "
            "and try again with a new uuid",
            rank=self.rank,
            operation="reconfigure",
            peer=missing[0],
        )

    def _lost(self, at: int, cause: str) -> PeerLost:
        return PeerLost(
            f"{self._name()}: {self._who(at)} has ended, or left ({cause}). Leave it out, and try again with a new uuid",
            rank=self.rank,
            operation="reconfigure",
            peer=at,
        )

    def _name(self) -> str:
        return f"reconfigure(uuid {self._number}, {len(self._members)} members)"

    def _who(self, at: int) -> str:
        return f"rank {at} ({self._members[at].who()})"


def _described(error: BaseException) -> dict:
    """Returns what lets another member raise the same error."""
    return {"kind": type(error).__name__, "peer": getattr(error, "peer", None)}


def decide(listener: Listener, number: int, handles: list[str], left: list[int]) -> bool:
    """Returns whether this process may go on with the members ``left`` of a meeting. It may not if other members have gone on
    without it: they have left their communicator, which from here looks as if they had ended."""
    members = [Handle.parse(handle) for handle in handles]
    out = [member for at, member in enumerate(members) if at not in left]
    # The others cannot have gone on without more than half of the members.
    if 2 * len(left) <= len(members):
        with ThreadPoolExecutor(max_workers=_ASKED) as asking:
            answers = list(asking.map(lambda member: _decision(member, number), out))
        if any(answer is not None and listener.handle.incarnation not in answer for answer in answers):
            return False
    listener.decide(number, [members[at].incarnation for at in left])
    return True


def _decision(member: Handle, number: int) -> list[str] | None:
    try:
        visit = connect(member, _ANSWER, meeting=number)
    except (Ended, Unreached):
        return None
    visit.close()
    return visit.greeting.get("decided")


class _Place:
    """The board on which the runtime's rank 0 publishes its address. The other members wait at its listener, or have the address."""

    def __init__(self, name: str, publish=lambda _: None, notice: bytes | None = None) -> None:
        self._name = name
        self._publish = publish
        self._notice = notice

    def publish(self, notice: bytes) -> None:
        self._publish(bytes(notice))

    def read(self) -> bytes | None:
        return self._notice

    def name(self) -> str:
        return self._name

    def served_by(self) -> None:
        return None
