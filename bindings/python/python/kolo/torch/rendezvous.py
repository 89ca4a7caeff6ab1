"""Rendezvous under every launcher.

Torch's own handlers expect the rank in the URL or in ``RANK``, and the meeting place in ``MASTER_ADDR`` and ``MASTER_PORT``. This
module supplies the rank if another launcher, or none, numbered the processes. If no meeting place is given, the ranks meet as those
of :func:`kolo.init` do. Rank 0 then serves a ``TCPStore`` for torch, and the communicator over which the ranks exchanged its
address becomes that of the group.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import warnings
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

import torch.distributed as dist

from .. import _kolo
from ..communicator import Communicator
from ..errors import Error, Join
from ..launchers import is_told_rank
from ..ranks import draw
from .errors import translate

_TIMEOUT = timedelta(minutes=30)

#: Bytes of rank 0's notice to the others: a port, and the addresses of one host.
_NOTICE_BYTES = 4096
#: Connections that may wait for rank 0 to accept them; the system has its own limit too.
_BACKLOG = 4096
#: The longest time, in seconds, until an address of rank 0 answers.
_PROBE_SECONDS = 3.0
_NONCE = "kolo/nonce"

#: The store of the last rendezvous by Kolo, and the communicator that its group will take.
_met: list[tuple[dist.Store, _kolo.Comm]] = []

Rendezvous = Iterator[tuple[dist.Store, int, int]]


def install() -> None:
    """Registers ``kolo://`` and ``multicast://``, and extends ``env://``, ``tcp://`` and ``file://``. May be called again."""
    handlers = dist.rendezvous.__globals__["_rendezvous_handlers"]
    if "kolo" in handlers:
        return
    dist.register_rendezvous_handler("kolo", _by_environment)
    dist.register_rendezvous_handler("multicast", _by_multicast)
    handlers["env"] = _taught_env(handlers["env"])
    for scheme in ("tcp", "file"):
        handlers[scheme] = _taught(handlers[scheme])


def take(store: dist.Store, rank: int, world_size: int) -> _kolo.Comm | None:
    """Returns the communicator of the rendezvous that made this store, for a group of all its ranks; only once."""
    for at, (made, comm) in enumerate(_met):
        if made is store and (comm.rank, comm.world_size) == (rank, world_size) and not comm.closed:
            del _met[at]
            return comm
    return None


def _taught_env(plain):
    def env(url: str, timeout: timedelta = _TIMEOUT, **options) -> Rendezvous:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return plain(url, timeout=timeout, **options)
        place = _place(url)
        has_master = bool(os.environ.get("MASTER_ADDR")) and bool(os.environ.get("MASTER_PORT"))
        if place is not None and has_master:
            return plain(_with(url, *place), timeout=timeout, **options)
        if _kolo.launched_as() is not None or os.environ.get("KOLO_RENDEZVOUS"):
            return _by_environment(url, timeout=timeout)
        return plain(url, timeout=timeout, **options)

    return env


def _taught(plain):
    def taught(url: str, timeout: timedelta = _TIMEOUT, **options) -> Rendezvous:
        place = _place(url) or _drawn(url, timeout)
        return plain(url if place is None else _with(url, *place), timeout=timeout, **options)

    return taught


def _by_environment(url: str, timeout: timedelta = _TIMEOUT, **_options) -> Rendezvous:
    place = _place(url)
    settings = _settings(timeout)
    if place is not None and not is_told_rank():
        settings.update(KOLO_RANK=str(place[0]), KOLO_WORLD_SIZE=str(place[1]))
    yield from _meet(lambda: _kolo.connect_env(settings), timeout)


def _by_multicast(url: str, timeout: timedelta = _TIMEOUT, **_options) -> Rendezvous:
    place = _place(url) or _drawn(url, timeout)
    # Without a rank and a size, Kolo's own error says which part of the URL is missing.
    whole = url if place is None else _with(url, *place)
    yield from _meet(lambda: _kolo.connect_url(whole, _settings(timeout)), timeout)


def _meet(connect, timeout: timedelta) -> Rendezvous:
    try:
        comm = connect()
        store = _serve(comm, timeout) if comm.rank == 0 else _find(comm, timeout)
    except Error as error:
        raise translate(error) from None
    _met[:] = [(store, comm)]
    # Set torchrun's variables, for programs that read them now.
    local = sum(host == comm.hosts[comm.rank] for host in comm.hosts)
    told = {"RANK": comm.rank, "WORLD_SIZE": comm.world_size, "LOCAL_RANK": comm.local_rank, "LOCAL_WORLD_SIZE": local}
    for name, number in told.items():
        os.environ.setdefault(name, str(number))
    yield store, comm.rank, comm.world_size
    raise Join("a rendezvous through Kolo cannot be repeated; call init_process_group again")


def _serve(comm: _kolo.Comm, timeout: timedelta) -> dist.Store:
    one_host = len(set(comm.hosts)) == 1
    listener = _listener(one_host)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", port, comm.world_size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    nonce = secrets.token_hex(16)
    store.set(_NONCE, nonce)
    addresses = ["127.0.0.1"] if one_host else _kolo.reachable_at()
    notice = json.dumps({"port": port, "nonce": nonce, "addresses": addresses[:64]}).encode()
    Communicator(comm).broadcast(bytearray(notice.ljust(_NOTICE_BYTES)))
    return store


def _listener(one_host: bool) -> socket.socket:
    """Listens on this host only, or at all its addresses of both families if the system offers that."""
    if one_host:
        return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    try:
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    except (OSError, ValueError):
        return socket.create_server(("", 0), backlog=_BACKLOG)  # this host has no IPv6


def _find(comm: _kolo.Comm, timeout: timedelta) -> dist.Store:
    room = bytearray(_NOTICE_BYTES)
    Communicator(comm).broadcast(room)
    notice = json.loads(bytes(room))
    causes = []
    for address in notice["addresses"]:
        try:
            # A TCPStore would try this address for all of its time-out.
            socket.create_connection((address, notice["port"]), _PROBE_SECONDS).close()
            brief = timedelta(seconds=_PROBE_SECONDS)
            store = dist.TCPStore(address, notice["port"], comm.world_size, False, brief, wait_for_workers=False)
            # Another host may have the same private address.
            if store.check([_NONCE]) and store.get(_NONCE).decode() == notice["nonce"]:
                store.set_timeout(timeout)
                return store
            causes.append(f"{address}: another job's store")
        except (OSError, RuntimeError) as problem:
            causes.append(f"{address}: {problem}")
    raise Join(
        f"rank {comm.rank} cannot reach the store that rank 0 serves for torch at port {notice['port']}: "
        f"{'; '.join(causes[:4])}. Open that connection, or set MASTER_ADDR and MASTER_PORT to an address "
        "that all ranks can reach"
    )


def _settings(timeout: timedelta) -> dict[str, str]:
    seconds = str(timeout.total_seconds())
    return {"KOLO_TIMEOUT": seconds, "KOLO_JOIN_TIMEOUT": seconds}


# The rank of this process.


def _place(url: str) -> tuple[int, int] | None:
    """Returns rank and world size: the caller's if they are valid, else the environment's; ``None`` if neither tells them.

    Under a launcher, the launcher's numbers win, since programs written for MPI pass (0, 0) or the like. But a program that gives a
    meeting place of its own may mean another job than the launcher's, so its own numbers win there.
    """
    query = dict(parse_qsl(urlsplit(url).query))
    rank, size = (int(query[name]) if name in query else None for name in ("rank", "world_size"))
    given = (rank, size) if rank is not None and size is not None and 0 <= rank < size else None
    launched = _kolo.launched_as()
    if launched is None:
        told = _numbers("RANK", "WORLD_SIZE") or _numbers("KOLO_RANK", "KOLO_WORLD_SIZE")
        fits = told is not None and rank is None and size in (None, told[1])
        return told if given is None and fits else given
    own_place = urlsplit(url).scheme in ("tcp", "file", "multicast") or os.environ.get("MASTER_ADDR")
    told = _numbers("RANK", "WORLD_SIZE") or (launched[1], launched[2])
    if given is None or given == told:
        return told
    if own_place:
        return given
    warnings.warn(
        f"rank {given[0]} of {given[1]} was given, but {launched[0]} started this process as rank {told[0]} of {told[1]}, "
        "which it is",
        stacklevel=2,
    )
    return told


def _numbers(rank: str, size: str) -> tuple[int, int] | None:
    found = os.environ.get(rank), os.environ.get(size)
    return (int(found[0]), int(found[1])) if all(found) else None


def _drawn(url: str, timeout: timedelta) -> tuple[int, int] | None:
    """Draws a rank if the caller gives the world size but no rank; returns the rank and the size, else ``None``."""
    query = dict(parse_qsl(urlsplit(url).query))
    if "rank" in query or "world_size" not in query:
        return None
    size = int(query["world_size"])
    try:
        return draw(url, size, timeout.total_seconds()), size
    except Error as error:
        raise translate(error) from None


def _with(url: str, rank: int, world_size: int) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query), rank=rank, world_size=world_size)
    return f"{parts.scheme}://{parts.netloc}{parts.path}?" + "&".join(f"{name}={value}" for name, value in query.items())
