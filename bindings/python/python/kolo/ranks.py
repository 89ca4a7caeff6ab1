"""Draws ranks for processes that no launcher has numbered.

The processes know their number and a meeting place, and draw their ranks there. At a file, they take numbers under a lock; at a
port, the process that opens it first numbers the others; in a multicast group, all announce themselves. The assignment is
arbitrary; afterwards they join like any other processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import threading
import time
from urllib.parse import parse_qs, urlsplit

from . import _kolo
from .errors import Join, Usage

#: The longest time for one request and its answer, in seconds.
_ANSWER_SECONDS = 5.0
#: Seconds between two attempts or announcements.
_PAUSE = 0.05
#: Seconds that a process goes on announcing itself after it has its rank, for others that have lost a datagram.
_LINGER_SECONDS = 2.0


def is_told_in(url: str) -> bool:
    """Returns whether a URL says which rank this is."""
    return "rank" in parse_qs(urlsplit(url).query)


def draw(url: str, world_size: int, timeout: float) -> int:
    """Draws a rank below ``world_size`` at ``url``: ``file://``, ``tcp://`` or ``multicast://``.

    Every process of the job calls it with the same URL and world size. Blocks until the rank is known, at most ``timeout``
    seconds: with a file that is at once, otherwise when all processes have come. Raises :class:`kolo.Join` if too few come, or too
    many.
    """
    if world_size < 1:
        raise Usage(f"the world size is {world_size}; a job has at least one rank")
    parts = urlsplit(url)
    ways = {"file": _draw_from_file, "tcp": _draw_from_port, "multicast": _draw_by_multicast}
    if parts.scheme not in ways:
        raise Usage(f"'{url}' cannot assign ranks: use file://, tcp:// or multicast://, or say which rank this is")
    return ways[parts.scheme](parts, world_size, time.monotonic() + timeout)


def _late(url: str, problem: str, remedy: str) -> Join:
    return Join(f"getting a rank from {url}: {problem}. {remedy}")


# A file beside the one at which the ranks meet lists the ranks that are taken. The process that takes the last rank removes it.


def _draw_from_file(parts, world_size: int, deadline: float) -> int:
    path = parts.path + ".ranks"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder of the lock may have removed this file.
            if _is_still(path, file):
                return _take(path, file, world_size, deadline)
        finally:
            os.close(file)


def _is_still(path: str, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _take(path: str, file: int, world_size: int, deadline: float) -> int:
    text = os.read(file, 1 << 20)
    try:
        taken = {int(rank): owner for rank, owner in json.loads(text or b"{}").items() if _may_live(owner)}
    except (ValueError, TypeError, AttributeError, KeyError):
        raise _late(path, "the file is not one of Kolo's", "Remove it, or meet at another path") from None
    rank = next(number for number in range(len(taken) + 1) if number not in taken)
    if rank >= world_size or any(owner["of"] != world_size for owner in taken.values()):
        sizes = sorted({owner["of"] for owner in taken.values()} | {world_size})
        raise _late(path, f"{len(taken)} processes came, with world sizes {sizes}", "Give each job a path of its own")
    if len(taken) + 1 == world_size:
        os.unlink(path)
        return rank
    until = time.time() + max(deadline - time.monotonic(), 0)
    taken[rank] = {"of": world_size, **_this_process(), "until": until}
    text = json.dumps(taken).encode()
    os.ftruncate(file, 0)
    os.pwrite(file, text, 0)
    return rank


def _may_live(owner: dict) -> bool:
    """Returns whether a process may still wait for others. A process of an earlier job that failed does not."""
    if time.time() > owner["until"]:
        return False
    here = _this_process()
    # Containers may share the host's name, but number processes for themselves.
    if any(owner[part] != here[part] for part in ("host", "namespace")):
        return True
    return _started(owner["pid"]) == owner["started"]


def _this_process() -> dict:
    pid = os.getpid()
    namespace = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "namespace": namespace, "pid": pid, "started": _started(pid)}


def _started(pid: int) -> str | None:
    """Returns when a process was started, in the kernel's units; ``None`` if there is none with this number."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program, in brackets, may hold blanks and brackets.
            return file.read().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


# The process that opens the port first is rank 0. It numbers the others, and closes the port, at which the ranks then join.


def _draw_from_port(parts, world_size: int, deadline: float) -> int:
    host, port = parts.hostname, parts.port
    if host is None or port is None:
        raise Usage(f"'{parts.geturl()}' does not name a host and a port")
    last = "no process has answered"
    while time.monotonic() < deadline:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
            listener = _listen(family, kind, protocol, address)
            if listener is not None:
                with listener:
                    _number_others(listener, parts, world_size, deadline)
                return 0
            with socket.create_connection(address[:2], min(_ANSWER_SECONDS, deadline - time.monotonic())) as asking:
                asking.sendall(f"kolo rank of {world_size}\n".encode())
                # Rank 0 answers when all processes have come.
                asking.settimeout(max(deadline - time.monotonic(), 0.01))
                answer = asking.makefile("rb").readline(64).decode(errors="replace").split()
            if len(answer) == 3 and answer[:2] == ["kolo", "rank"]:
                return int(answer[2])
            if len(answer) == 3 and answer[:2] == ["kolo", "size"]:
                problem = f"rank 0 says that there are {answer[2]} ranks, but this process {world_size}"
                raise _late(parts.geturl(), problem, "Give all processes the same world size")
            last = "something else is listening there, perhaps rank 0 of a job that already has all its ranks"
        except (OSError, ValueError) as problem:
            last = str(problem)
        time.sleep(_PAUSE)
    raise _late(parts.geturl(), last, "Check whether all processes were started, and whether the port is free")


def _listen(family, kind, protocol, address) -> socket.socket | None:
    """Returns a listener; ``None`` if the address is another host's or the port is taken."""
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        return listener
    except OSError:
        listener.close()
        return None


def _number_others(listener: socket.socket, parts, world_size: int, deadline: float) -> None:
    waiting: list[socket.socket] = []
    while len(waiting) + 1 < world_size:
        left = deadline - time.monotonic()
        if left <= 0:
            problem = f"{world_size - 1 - len(waiting)} of {world_size} processes did not come"
            raise _late(parts.geturl(), problem, "Check whether all processes were started")
        listener.settimeout(left)
        try:
            asking, _ = listener.accept()
        except socket.timeout:
            continue
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asked = asking.makefile("rb").readline(64).decode(errors="replace").split()
            if asked == ["kolo", "rank", "of", str(world_size)]:
                waiting.append(asking)
                continue
            if asked[:3] == ["kolo", "rank", "of"]:
                asking.sendall(f"kolo size {world_size}\n".encode())
        except OSError:
            pass
        asking.close()
    # Close before answering: a process that has its rank connects to this port to join, and must not reach this listener.
    listener.close()
    for rank, asking in enumerate(waiting, 1):
        with asking:
            try:
                asking.sendall(f"kolo rank {rank}\n".encode())
                # The side that closes first keeps the port in TIME_WAIT, so let the other side do it.
                asking.recv(1)
            except OSError:
                continue  # the join will report that it is missing


# In a multicast group, every process announces a random number. The order of the numbers gives the ranks.


def _draw_by_multicast(parts, world_size: int, deadline: float) -> int:
    group, port, job = parts.hostname, parts.port, parts.path.strip("/")
    if group is None or port is None or not job:
        raise Usage(f"'{parts.geturl()}' does not name a group, a port and a job: multicast://239.1.2.3:29500/job")
    interfaces = parse_qs(parts.query).get("interface") or [a for a in _kolo.reachable_at() if ":" not in a]
    me = os.urandom(8).hex()
    hearing = _hear(group, port, interfaces)
    speaking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    speaking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    #: For each known process, whether it has announced that it knows all of them.
    known = {me: False}

    def announce(over: bool) -> None:
        text = json.dumps({"job": job, "of": world_size, "id": me, "all": len(known) == world_size, "over": over})
        for interface in interfaces:
            try:
                speaking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
                speaking.sendto(b"kolo# 1 " + text.encode(), (group, port))
            except OSError:
                continue  # not every interface carries multicast; if none does, the deadline says so

    with hearing:
        while not (len(known) == world_size and all(known.values())):
            if time.monotonic() > deadline:
                problem = f"{len(known)} of {world_size} processes have been heard of"
                raise _late(parts.geturl(), problem, "Check whether the network supports multicast: ?interface=ADDRESS")
            known[me] = len(known) == world_size
            announce(False)
            _listen_once(hearing, parts, job, world_size, known)
    threading.Thread(target=_linger, args=(speaking, announce), name="kolo-announcing", daemon=True).start()
    return sorted(known).index(me)


def _hear(group: str, port: int, interfaces: list[str]) -> socket.socket:
    hearing = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hearing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    hearing.bind((group, port))
    for interface in interfaces:
        try:
            joined = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(interface))
            hearing.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        except OSError:
            continue  # as above
    return hearing


def _listen_once(hearing: socket.socket, parts, job: str, world_size: int, known: dict[str, bool]) -> None:
    until = time.monotonic() + _PAUSE
    while (left := until - time.monotonic()) > 0:
        hearing.settimeout(left)
        try:
            datagram = hearing.recv(1500)
            said = json.loads(datagram.removeprefix(b"kolo# 1 ")) if datagram.startswith(b"kolo# 1 ") else {}
        except (socket.timeout, ValueError):
            continue
        if not isinstance(said, dict) or said.get("job") != job or not isinstance(said.get("id"), str):
            continue
        if said["id"] not in known:
            # A process that lingers belongs to an earlier job of this name.
            if said.get("over"):
                continue
            if said.get("of") != world_size or len(known) >= world_size:
                problem = f"more than {world_size} processes announced themselves, or some with other world sizes"
                raise _late(parts.geturl(), problem, "Give each job a name of its own")
        known[said["id"]] = bool(said.get("all"))


def _linger(speaking: socket.socket, announce) -> None:
    until = time.monotonic() + _LINGER_SECONDS
    with speaking:
        while time.monotonic() < until:
            announce(True)
            time.sleep(_PAUSE)
