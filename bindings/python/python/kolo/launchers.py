"""Which launcher started this process, in the words of PyTorch."""

from __future__ import annotations

import os

from . import _kolo

#: What launchers set for every rank, beside torchrun. Looked at before anything is loaded.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID", "PMI_RANK", "KOLO_RENDEZVOUS")


def is_told_rank() -> bool:
    """Whether the environment tells which rank this is."""
    return any(os.environ.get(name) for name in ("KOLO_RANK", "RANK")) or _kolo.launched_as() is not None


def draw_where_needed(url: str | None, rank: int | None, world_size: int | None, timeout: float | None) -> int | None:
    """``rank``, or one that is drawn where neither the caller, nor the URL, nor the environment tells it."""
    if url is None or rank is not None or world_size is None or "rank=" in url or url.startswith("env:"):
        return rank
    if is_told_rank():
        return None
    # With all that it needs, loaded only where it is wanted.
    from .ranks import draw

    return draw(url, world_size, 300.0 if timeout is None else timeout)


def fill_in() -> None:
    """Sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` as torchrun does, where another launcher told them.

    What is set already stays.
    """
    if os.environ.get("RANK"):
        return
    found = _kolo.launched_as()
    if found is None:
        return
    _, *numbers = found
    for name, number in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), numbers):
        if number is not None:
            os.environ.setdefault(name, str(number))


def torch_is_loaded() -> None:
    """What torch calls at the end of ``import torch``, by an entry point.

    Torch looks for ``RANK`` before it loads a backend. Under a launcher that does not set it, a program that never imports
    Kolo is therefore helped from here: the first ``env://`` loads :mod:`kolo.torch`, which takes it over.
    """
    if not any(os.environ.get(name) for name in _RANKS):
        return
    try:
        from torch.distributed.rendezvous import _rendezvous_handlers as handlers
    except ImportError:
        return  # a torch without torch.distributed
    plain = handlers.get("env")
    if plain is None:
        return

    def env(url: str, **options):
        if handlers.get("env") is not env:
            # kolo.torch was imported meanwhile and has taken env:// over: it asks for torch's own.
            return plain(url, **options)
        handlers["env"] = plain
        try:
            from . import torch  # noqa: F401  takes env:// over
        except ImportError:
            pass  # an older torch, which Kolo does not serve
        return handlers["env"](url, **options)

    handlers["env"] = env
