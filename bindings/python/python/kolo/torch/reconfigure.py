"""Groups whose members change: the ``reconfigure`` of ``torch.distributed``.

A group made with ``enable_reconfigure=True`` has no communicator until the first ``reconfigure``, and each ``reconfigure`` gives it
a new one. Its rank and size are those of its current communicator.
"""

from __future__ import annotations

import hashlib
import threading

import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from ..listener import Listener
from ..errors import Error
from ..meeting import Meeting, decide
from . import errors
from .engine import Engine
from .errors import Unsupported, Usage, translate
from .group import KoloBackend, KoloGroup, refuse_others
from .work import Finished

_ERROR_TYPES = {errors.Timeout: ErrorType.TIMEOUT, errors.PeerLost: ErrorType.REMOTE_ERROR}


class Unjoined:
    """A placeholder for a communicator that does not exist yet; ``remedy`` tells users how to get one."""

    closed = True

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy

    def close(self) -> None:
        pass

    def __getattr__(self, name: str):
        raise Usage(f"the group has no members yet: {self._remedy}")


class Membership:
    """The members of a group, shared by the group and its backend."""

    def __init__(self, rank: int, size: int, seconds: float, name: str) -> None:
        #: The program's numbers at first, later the communicator's.
        self.rank, self.size = rank, size
        nobody = Unjoined(
            "it was made with enable_reconfigure=True, so first call reconfigure with the handles of all members"
        )
        self.engine = Engine(nobody, seconds, name, list(range(size)))
        self._number = rank
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        #: Held while the members meet.
        self._meeting = threading.Lock()
        #: The number of the meeting that made the communicator, and the handles of its ranks.
        self._uuid, self._handles = 0, []
        self._asked = 0
        #: The objects that get each new engine.
        self.holders: list = []

    def handle(self) -> str:
        try:
            with self._lock:
                if self._listener is None:
                    self._listener = Listener(self._number)
                return str(self._listener.handle)
        except Error as error:
            raise translate(error) from None

    def reconfigure(self, opts) -> None:
        """Meets the other members. Leaves the old communicator if that succeeds, and keeps it otherwise."""
        self.handle()
        if not self._meeting.acquire(blocking=False):
            raise Usage("reconfigure: another thread is already reconfiguring this group")
        try:
            given = opts.handles
            handles = list(given) if isinstance(given, (list, tuple)) else sorted(given)
            old = self.engine
            seconds = old.seconds if opts.timeout is None else opts.timeout.total_seconds()
            meeting = Meeting(self._listener, opts.uuid, handles, seconds)
            comm = meeting.join({"KOLO_TIMEOUT": str(old.seconds)})
            self._uuid, self._handles, self._asked = opts.uuid, handles, 0
            self.rank, self.size = comm.rank, comm.world_size
            self.engine = Engine(comm, old.seconds, old.name, list(range(comm.world_size)))
            for holder in self.holders:
                holder._engine = self.engine
        except Error as error:
            raise translate(error) from None
        finally:
            self._meeting.release()
        leave(old)

    def survivors(self) -> tuple[int, list[str]]:
        comm = self.engine.comm
        try:
            comm.revoke()
            _, ranks = comm.agree(1)
            if not decide(self._listener, self._uuid, self._handles, ranks):
                raise errors.Fenced(
                    f"rank {comm.rank}, kolo_survivors: the others have gone on without this rank, which was silent for too "
                    "long. End this process, or have the others admit it again by reconfigure",
                    rank=comm.rank,
                    operation="kolo_survivors",
                )
        except Error as error:
            raise translate(error) from None
        # All ranks that are left have called it equally often, so they compute the same uuid.
        self._asked += 1
        text = f"{self._uuid} {self._asked} {' '.join(self._handles)} {ranks}"
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1, [self._handles[rank] for rank in ranks]

    def close(self) -> None:
        self.engine.close()
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def leave(old: Engine) -> None:
    """Leaves a communicator that another one has replaced, and drops its pending operations, since some of its ranks are gone."""
    # On another thread, since the first rank stays for a second so that the others can leave. The interpreter joins it at its end.
    threading.Thread(target=_leave, args=(old,), name=f"kolo-leaving-{old.name}").start()


def _leave(old: Engine) -> None:
    if not old.comm.closed and any(took is None for *_, took in old.comm.records()):
        old.abort("another communicator has taken its place")
    old.close()


class Reconfigurable:
    """The methods that a group and its backend have in common; they share ``self._membership``."""

    _membership: Membership

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def get_reconfigure_handle(self) -> str:
        """Returns the handle by which others find this process. It stays the same for as long as the group lives."""
        return self._membership.handle()

    def reconfigure(self, opts) -> dist.Work:
        """Makes a communicator of the members whose handles are given; blocks until all have joined. A member's rank is the place of
        its handle in the list. The handles of a set are sorted first, which orders them by the ranks that the processes began with.

        All members pass the same handles and the same ``uuid``, which none of them has passed before. They meet at the first member;
        no store, and no process outside the list, is needed. If it fails, the group stays as it was. Unknown ``hints`` are ignored.
        """
        self._membership.reconfigure(opts)
        return Finished()

    def kolo_survivors(self) -> tuple[int, list[str]]:
        """Returns the members that are left after a loss, as ``uuid`` and ``handles`` for ``reconfigure``: the same on all of them.

        Revokes the communicator on all ranks, and blocks until all live ranks have called it. Needs no store, and any rank may have
        died. Raises :class:`kolo.torch.Fenced` if the others have gone on without this rank, and :class:`kolo.torch.Minority` if
        too few ranks answer.
        """
        return self._membership.survivors()

    def get_error(self) -> ErrorType:
        """Returns why the communicator failed, as far as a call has shown; ``SUCCESS`` after an abort, as with Gloo."""
        return _ERROR_TYPES.get(type(self._engine.failure), ErrorType.SUCCESS)

    def shutdown(self) -> None:
        self._membership.close()


class ReconfigurableBackend(Reconfigurable, KoloBackend):
    """The backend of a group whose members change. Torch's C++ keeps the first rank and size of the backend, but asks the group for
    the current ones."""

    def __init__(self, membership: Membership) -> None:
        super().__init__(membership.engine, membership.rank, membership.size)
        self._membership = membership
        membership.holders.append(self)

    def rank(self) -> int:
        return self._membership.rank

    def size(self) -> int:
        return self._membership.size


class ReconfigurableGroup(Reconfigurable, KoloGroup):
    """A group whose members change."""

    def __init__(self, store, membership: Membership) -> None:
        super().__init__(store, ReconfigurableBackend(membership), membership.rank, membership.size)
        self._membership = membership
        membership.holders.append(self)

    # Torch's C++ calls the methods by these names.

    def getRank(self) -> int:  # noqa: N802
        return self._membership.rank

    def getSize(self) -> int:  # noqa: N802
        return self._membership.size

    def get_reconfigure_handle(self) -> str:
        refuse_others(self)
        return super().get_reconfigure_handle()


def create(options) -> ReconfigurableGroup:
    """Makes a group without members."""
    if list(options.global_ranks_in_group):
        raise Unsupported(
            "enable_reconfigure: torch can reconfigure only the default group; make subgroups again from it instead"
        )
    seconds = options.timeout.total_seconds()
    membership = Membership(options.group_rank, options.group_size, seconds, options.group_id or "default")
    return ReconfigurableGroup(options.store, membership)
