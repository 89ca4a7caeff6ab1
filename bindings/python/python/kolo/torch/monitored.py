"""``monitored_barrier``, which names the ranks that did not reach it."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
from torch.distributed import default_pg_timeout

from ..errors import Error, Timeout
from ..numbers import U8
from .engine import Engine
from .messages import TAGS

#: Tags of its messages, above those of the program's.
_ARRIVED, _RELEASED = TAGS, TAGS + 1

#: Seconds between two checks which ranks have arrived.
_POLL_SECONDS = 0.0002

#: The other ranks wait for rank 0 for twice the limit and this many seconds.
_GRACE_SECONDS = 10.0

_ZERO = timedelta(0)


class MonitoredBarrier:
    """``monitored_barrier``; ``self._engine`` runs it."""

    _engine: Engine

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have called it. Rank 0 waits for the others for at most ``timeout``; with 0 it checks once. If
        ranks are missing, it names them, and the group is aborted on all ranks.

        ``timeout`` is a timedelta, or the options that torch's C++ passes on.
        """
        limit = self._barrier_limit(timeout)
        if self._engine.comm.world_size == 1:
            return
        # A byte for each message; it stays alive for as long as this call.
        room = torch.zeros(self._engine.comm.world_size, dtype=torch.uint8, device="cpu")
        if self._engine.comm.rank == 0:
            self._release_all(room, limit, wait_all_ranks)
        else:
            self._report_to_first(room, 2 * limit + _GRACE_SECONDS)

    def _barrier_limit(self, timeout) -> float:
        given = getattr(timeout, "timeout", timeout)
        # If the caller gave no time-out, torch passes its own default or a negative one.
        if given is None or given < _ZERO or given == default_pg_timeout:
            return self._engine.seconds
        return given.total_seconds()

    def _message(self, send: bool, peer: int, room, tag: int):
        at = room.data_ptr() + peer
        return self._engine.comm.start_transfer((send, peer, at, 1, U8, tag), room)

    def _release_all(self, room, limit: float, all_ranks: bool) -> None:
        others = range(1, self._engine.comm.world_size)
        deadline = time.monotonic() + limit
        try:
            arrivals = {rank: self._message(False, rank, room, _ARRIVED) for rank in others}
            while (missing := [rank for rank in others if not arrivals[rank].done()]) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if not missing:
                for arrival in arrivals.values():
                    arrival.wait(self._engine.seconds)
                for release in [self._message(True, rank, room, _RELEASED) for rank in others]:
                    release.wait(self._engine.seconds)
                return
        except Error as error:
            raise self._engine.failed(error) from None
        text = _who_is_missing(missing, limit, all_ranks)
        self._engine.abort(text)
        late = Timeout(text, rank=0, operation="monitored_barrier", sequence=None, peer=missing[0])
        raise self._engine.failed(late)

    def _report_to_first(self, room, limit: float) -> None:
        rank = self._engine.comm.rank
        try:
            arrival = self._message(True, 0, room, _ARRIVED)
            # Received into another byte than the one that is sent.
            release = self._engine.comm.start_transfer((False, 0, room.data_ptr() + rank, 1, U8, _RELEASED), room)
            arrival.wait(limit)
            release.wait(limit)
        except Error as error:
            told = self._engine.failed(error)
            text = (
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: {told}"
            )
            kind, place = type(told), {"rank": rank, "operation": "monitored_barrier", "peer": told.peer}
            raise kind(text, sequence=None, **place) from None


def _who_is_missing(missing: list[int], limit: float, all_ranks: bool) -> str:
    """Names the missing ranks in the words of torch's own text, which tools and tests look for."""
    milliseconds = round(limit * 1000)
    names = ", ".join(map(str, missing))
    who = f"Ranks {names}" if all_ranks else f"Rank {missing[0]}"
    text = (
        f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms: {who} failed to pass "
        f"monitoredBarrier in {milliseconds} ms"
    )
    return text + (f"; rank {names} has not called it" if len(missing) == 1 else f"; ranks {names} have not called it")
