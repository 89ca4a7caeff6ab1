"""Works of groups that have other backends beside Kolo.

Such a group is torch's own, and its C++ returns a holder of Kolo's work. The holder forwards only ``wait`` and ``get_future``; its
base class answers all other calls, so that ``is_completed`` stays False for ever. The methods here ask the work inside. Works of
other backends behave as before.
"""

from __future__ import annotations

import functools
import threading

import torch

from .graphs import kept_out
from .work import KoloWork


class _Asked(threading.local):
    now = False
    work: KoloWork | None = None


_asked = _Asked()

#: The methods of ``torch.distributed.Work`` that the work inside answers.
FORWARDED = ("is_success", "exception", "result", "source_rank", "_source_rank", "synchronize", "_get_sequence_number")


def reveal_works() -> None:
    """Makes Kolo's works tell holders who they are. To be called once."""
    KoloWork.get_future = _telling(KoloWork.get_future)


def _telling(get_future):
    """Wraps ``get_future`` so that it can reveal its work: a holder calls it on the thread of its own caller."""

    @functools.wraps(get_future)
    def told(self):
        if _asked.now:
            _asked.work = self
            return torch.futures.Future()
        return get_future(self)

    return kept_out(told)


def _held(holder) -> KoloWork | None:
    """Returns Kolo's work in a holder of torch's; ``None`` if the work is another backend's."""
    _asked.now, _asked.work = True, None
    try:
        holder.get_future()
    except RuntimeError:
        return None  # the work's backend has no futures
    finally:
        _asked.now = False
    found, _asked.work = _asked.work, None
    return found


def completed_if_ours_is(plain):
    """Makes a holder be complete when the work inside is."""

    def is_completed(self):
        if plain(self):
            return True
        ours = _held(self)
        return ours is not None and ours.is_completed()

    return is_completed


def forwarded(plain):
    """Makes a holder answer as the work inside does."""

    def ask(self):
        ours = _held(self)
        return plain(self) if ours is None else getattr(ours, plain.__name__)()

    return ask
