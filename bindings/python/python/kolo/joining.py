"""Functions that make a process's first communicator."""

from __future__ import annotations

from . import _kolo
from .communicator import Communicator
from .errors import Usage
from .launchers import draw_where_needed


def get_unique_id(host: str | None = None) -> bytes:
    """Makes an id of 128 bytes by which ranks find each other; pass it to all of them by your own means.

    Rank 0 must be on this host. ``host`` is the name or address by which the others reach it; the default is the address of the
    default route. Does not block. Raises :class:`kolo.Configuration` or :class:`kolo.System`.
    """
    return _kolo.unique_id(host)


def init(
    url: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    unique_id: bytes | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    **settings: object,
) -> Communicator:
    """Joins the other ranks. Blocks until all have joined, at most ``join_timeout`` seconds (default 300).

    Args:
        url: ``tcp://host:port``, ``file:///path``, ``multicast://group:port/job`` or ``env://``; by default the environment
            decides, as torchrun, Open MPI, MPICH, Cray PALS, Slurm or ``kolo run`` set it.
        rank, world_size: This process's rank and the number of ranks, where neither the URL nor the environment tells them. With a
            URL other than ``env://``, ``world_size`` alone is enough: the processes then draw their ranks.
        unique_id: An id of :func:`get_unique_id`, instead of a URL; needs ``rank`` and ``world_size``.
        timeout: Seconds after which an operation gives up (default 600).
        settings: Any other setting by the name of its variable without ``KOLO_`` and in lower case, such as
            ``transport="tcp"`` or ``determinism="canonical"``. They override the environment. With ``join=invitation``
            (see :meth:`Communicator.accept`), or ``join="file:///path"`` of a file with one, this process joins a running group,
            and the call blocks until the group admits it; ``slot=n`` asks for that slot only.

    Raises :class:`kolo.Configuration` if something is missing or wrong, :class:`kolo.Join` if not all ranks arrive.
    """
    given = dict(settings, timeout=timeout, join_timeout=join_timeout)
    environment = {f"KOLO_{name.upper()}": str(value) for name, value in given.items() if value is not None}
    if unique_id is not None:
        if url is not None or rank is None or world_size is None:
            raise Usage("with unique_id, give rank and world_size, and no url")
        return Communicator(_kolo.connect_id(unique_id, rank, world_size, environment))
    rank = draw_where_needed(url, rank, world_size, join_timeout)
    if rank is not None:
        environment["KOLO_RANK"] = str(rank)
    if world_size is not None:
        environment["KOLO_WORLD_SIZE"] = str(world_size)
    if url is None:
        return Communicator(_kolo.connect_env(environment))
    return Communicator(_kolo.connect_url(url, environment))
