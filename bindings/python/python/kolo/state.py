"""State for newcomers: ranks that have a job's latest results send them to ranks that lack them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from . import _kolo, memory
from .communicator import Communicator
from .errors import Join, Usage
from .survivors import Survivors

#: DLPack's numbers for host memory, plain and pinned.
_HOST_DEVICES = (1, 3)


class State:
    """A record of the step (version) that a rank's memory belongs to, and of the communicator on which it was last shared.

    A newcomer begins without a version, other ranks with step 0. ::

        comm = kolo.init()
        state, group = kolo.State(comm), kolo.Survivors(comm, up_to=8)
        while state.version is None or state.version < 1000:
            group.admit()  # newcomers come in here, and nowhere else

            def step(comm):
                state.share(comm, {"weights": weights, "moments": moments})
                return comm.all_reduce(gradient(state.version, weights))

            update(weights, moments, group.run(step))
            state.advance()
    """

    __slots__ = ("_state",)

    def __init__(self, comm: Communicator) -> None:
        is_newcomer = comm.ranks_before[comm.rank] is None
        self._state = _kolo.State(None if is_newcomer else 0)

    @property
    def version(self) -> int | None:
        """The step that the contents of this rank's memory belong to; ``None`` if it has none."""
        return self._state.version()

    @version.setter
    def version(self, version: int) -> None:
        if version < 0:
            raise Usage(f"the version is {version}, but must be 0 or more")
        self._state.set_version(version)

    def advance(self) -> None:
        """Declares that the memory now belongs to the next step."""
        version = self.version
        self.version = 0 if version is None else version + 1

    def share(self, comm: Communicator, parts: Mapping[str, object]) -> int:
        """Gives the latest version to all ranks that lack it; returns how many bytes this rank has received.

        ``parts`` are arrays (or other objects that expose their memory) that are written in place, with the same names and lengths in
        the same order on all ranks. All ranks call it, at the beginning of a step. If it has succeeded on this communicator before, it
        costs one comparison. Chunks of 1 MiB come from several ranks at a time, nearest first, and are checked against hashes; a wrong
        chunk is fetched from another rank. Raises :class:`kolo.Usage` on all ranks if the parts differ or no rank has the state.
        """
        places, _owners = _found(parts, comm._comm)
        received, _, _ = self._state.share(comm._comm, places)
        return received

    def offer(self, group: Survivors, parts: Mapping[str, object]) -> bool:
        """Copies this rank's state if newcomers ask for it (:meth:`fetched`), and serves the copy while the program goes on.

        All members call it between two steps, with the memory of this version; returns whether it made a copy. Costs next to nothing
        while nobody asks. Otherwise it costs the time to copy the memory, and as much memory again until the newcomers have it. Never
        waits for other ranks.
        """
        comm = group.comm._comm
        # The first call opens the snapshot server, the service from which newcomers fetch.
        asked = group._is_asked
        places, _owners = _found(parts, comm) if asked else ([], [])
        return self._state.offer(comm, asked, places)

    @property
    def is_offering(self) -> bool:
        """Whether this rank keeps a copy for newcomers to fetch."""
        return self._state.is_offering()

    @classmethod
    def fetched(cls, invitation: str, parts: Mapping[str, object], *, timeout: float = 60.0) -> State:
        """Fetches the members' state while they go on; a newcomer calls it before it joins by the same invitation. ::

            state = kolo.State.fetched(invitation, {"weights": weights})
            group = kolo.Survivors(kolo.init(join=invitation), up_to=8)

        ``invitation`` is text, or ``file:///path``. Members that call :meth:`offer` copy their state at the end of a step. ``parts`` are
        filled from several members at a time; each chunk is checked against another member's hash. The first :meth:`share` then
        brings only the chunks that have changed since. Blocks for ``timeout`` seconds at most. Raises :class:`kolo.Join` if no member
        has offered its state by then; the newcomer may still join, with a ``State`` of its communicator. Raises :class:`kolo.Usage`
        if the parts differ.
        """
        for name, obj in parts.items():
            device = getattr(obj, "__dlpack_device__", None)
            if hasattr(obj, "__cuda_array_interface__") or (device is not None and device()[0] not in _HOST_DEVICES):
                raise Usage(f"part {name!r} is in the memory of a GPU, which is not supported: fetch into the memory of the host")
        end = time.monotonic() + timeout
        state = cls.__new__(cls)
        state._state = _kolo.State(None)
        places, _owners = _found(parts, None)
        state._state.fetch(_text(invitation, end), places, max(0.0, end - time.monotonic()))
        return state


def _found(
    parts: Mapping[str, object], comm: _kolo.Comm | None
) -> tuple[list[tuple[str, int, int]], list[memory.Memory]]:
    """Returns the parts' names, addresses and lengths, and the objects that keep their memory in its place while they live."""
    places, owners = [], []
    for name, obj in parts.items():
        if not isinstance(name, str):
            raise Usage(f"the name of a part must be a str, not {name!r}")
        part = memory.find(f"part {name!r}", obj, True, comm)
        if part.back is not None:
            raise Usage(f"part {name!r} is not contiguous")
        places.append((name, part.address, part.count * memory.SIZES[part.type]))
        owners.append(part)
    spans = sorted((address, address + length) for _, address, length in places if length)
    if any(before[1] > after[0] for before, after in zip(spans, spans[1:])):
        raise Usage("two parts share memory")
    if comm is not None and any(length and comm.is_gpu_memory(address) for _, address, length in places):
        raise Usage("parts in the memory of a GPU are not supported: share copies in the memory of the host")
    return places, owners


def _text(invitation: str, end: float) -> str:
    """Returns the invitation; waits for its file if there is none yet."""
    if not invitation.startswith("file://"):
        return invitation
    path = Path(invitation.removeprefix("file://"))
    while not path.exists():
        if time.monotonic() >= end:
            raise Join(f"there is no invitation in {path}; check whether a member has written one")
        time.sleep(0.05)
    return path.read_text()
