"""Finds out which launcher started this process, and sets the variables that PyTorch expects."""

from __future__ import annotations

import os

from . import _kolo

#: Variables that launchers other than torchrun set on every rank. Checked first, so that nothing is loaded without need.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID", "PMI_RANK", "KOLO_RENDEZVOUS")


def is_told_rank() -> bool:
    """Returns whether the environment tells which rank this is."""
    return any(os.environ.get(name) for name in ("KOLO_RANK", "RANK")) or _kolo.launched_as() is not None


def draw_where_needed(url: str | None, rank: int | None, world_size: int | None, timeout: float | None) -> int | None:
    """Returns ``rank``; draws one if neither the caller, nor the URL, nor the environment tells it.

    Returns ``None`` if the URL or the environment tells it.
    """
    if url is None or rank is not None or world_size is None or url.startswith("env:"):
        return rank
    if is_told_rank():
        return None
    # The module needs much of the standard library, so it is loaded only where it is used.
    from .ranks import draw, is_told_in

    if is_told_in(url):
        return None

    return draw(url, world_size, 300.0 if timeout is None else timeout)


def fill_in() -> None:
    """Sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` as torchrun does, if another launcher told them.

    Variables that are already set stay as they are.
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
    """Entry point that torch calls at the end of ``import torch``.

    Torch looks for ``RANK`` before it loads a backend. Under a launcher that does not set ``RANK``, a program that never imports
    Kolo would therefore fail. So the first use of ``env://`` loads :mod:`kolo.torch`, which handles ``env://`` from then on.
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
            # kolo.torch was imported meanwhile and handles env:// now; it calls this function as torch's own handler.
            return plain(url, **options)
        handlers["env"] = plain
        try:
            from . import torch  # noqa: F401  takes env:// over
        except ImportError:
            pass  # an older torch, which Kolo does not serve
        return handlers["env"](url, **options)

    handlers["env"] = env
