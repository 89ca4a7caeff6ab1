"""State for newcomers: what a job has computed so far goes from the ranks that have it to those that lack it."""

from __future__ import annotations

from collections.abc import Mapping

from . import _kolo, memory
from .communicator import Communicator
from .errors import Usage


class State:
    """Which step a rank's memory is of, and with whom it has shared it. A newcomer begins with none, others with step 0. ::

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
        """The step that this rank's memory is of; ``None`` if it has nothing."""
        return self._state.version()

    @version.setter
    def version(self, version: int) -> None:
        if version < 0:
            raise Usage(f"the version is {version}, but must be 0 or more")
        self._state.set_version(version)

    def advance(self) -> None:
        """The memory is of the next step from now on."""
        version = self.version
        self.version = 0 if version is None else version + 1

    def share(self, comm: Communicator, parts: Mapping[str, object]) -> int:
        """Gives the latest version to all ranks that lack it; returns how many bytes this rank has received.

        ``parts`` are arrays (or whatever lends its memory) that are written in place: the same names and lengths in the same order on
        all ranks. All ranks call it, at the beginning of a step. Costs a comparison if it has succeeded on this communicator before.
        Chunks of 1 MiB come from several ranks at a time, nearest first, and are checked against hashes; a chunk that is wrong is
        fetched from another rank. Raises :class:`kolo.Usage` on all ranks if the parts differ or no rank has the state.
        """
        found = []
        for name, obj in parts.items():
            if not isinstance(name, str):
                raise Usage(f"parts are named by text, not by {name!r}")
            part = memory.find(f"part {name!r}", obj, True, comm._comm)
            if part.back is not None:
                raise Usage(f"part {name!r} is not contiguous")
            found.append((name, part.address, part.count * memory.SIZES[part.type], part))
        spans = sorted((address, address + length) for _, address, length, _ in found if length)
        if any(before[1] > after[0] for before, after in zip(spans, spans[1:])):
            raise Usage("two parts share memory")
        if any(length and comm._comm.is_gpu_memory(address) for _, address, length, _ in found):
            raise Usage("parts in the memory of a GPU are not supported: share copies in the memory of the host")
        received, _, _ = self._state.share(comm._comm, [of[:3] for of in found])
        return received
