"""Listeners: each process listens at a port of its own, so that others reach it even if any third process has died."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Iterator

from . import _kolo
from .errors import Configuration, System
from .handles import FRAME_BYTES, NONCE_BYTES, Handle, answer_context, framed, unframed

#: Seconds that a new connection has to authenticate itself, and the most connections that may be doing so at once.
_GREETING_SECONDS, _STRANGERS = 10.0, 256
_PAUSE = 0.05
#: Most meetings of which a listener remembers how they ended. Members have forgotten older ones too.
_REMEMBERED = 1024
#: Most addresses in a handle.
_ADDRESSES = 64
#: Most seconds for which one address of a member is tried alone before the next is tried too.
_HEAD_START = 0.1
#: The system's errors for an address where nobody listens, or to which there is no route from here.
_NOBODY = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


class Ended(Exception):
    """The process of this handle has ended, or has closed its listener."""


class Unreached(Exception):
    """The process did not answer; it may be alive."""


class Visitor:
    """A member that has connected to a listener and waits there."""

    def __init__(self, stream: socket.socket, said: dict, nonces: bytes) -> None:
        self.stream = stream
        self.said = said
        self._nonces = nonces
        self._told = 0

    def tell(self, key: bytes, **what) -> None:
        """Sends a message. Never blocks: if the visitor does not read, the message is dropped."""
        body = json.dumps(what).encode()
        try:
            self.stream.send(framed(key, answer_context(self._nonces, self._told), body))
        except OSError:
            pass  # the listener's thread sees that it has gone
        self._told += 1

    def dismiss(self, key: bytes, **what) -> None:
        """Sends the last message and ends the stream."""
        self.tell(key, **what)
        try:
            self.stream.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # as above


class Listener:
    """This process's listener, with the thread that serves it. ``number`` is the rank that the process began with."""

    def __init__(self, number: int) -> None:
        self._socket = _listen()
        self.handle = Handle(
            number,
            secrets.token_hex(8),
            secrets.token_bytes(16),
            self._socket.getsockname()[1],
            os.getpid(),
            socket.gethostname().replace(":", "_").replace(",", "_"),
            tuple(_kolo.reachable_at()[:_ADDRESSES]),
        )
        #: Guards :attr:`visitors` and :attr:`refused`; notified when a visitor comes or goes.
        self.changed = threading.Condition()
        #: The visitors that wait, by the number of the meeting that they came for.
        self.visitors: dict[int, list[Visitor]] = {}
        #: Meetings that can no longer be joined, and what visitors are told about each.
        self.refused: dict[int, dict] = {}
        #: For each meeting, the incarnations of the members that go on after it, as far as this process has agreed to.
        self.decided: dict[int, list[str]] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._thread = threading.Thread(target=self._run, name="kolo-listener", daemon=True)
        _listeners.add(self)
        self._thread.start()

    def refuse(self, meeting: int, why: str, **more) -> None:
        """Sends away the visitors that wait for a meeting, and those that come for it later. ``more`` describes the error."""
        with self.changed:
            told = {"error": why, **more}
            _remember(self.refused, meeting, told)
            for visitor in self.visitors.pop(meeting, ()):
                visitor.dismiss(self.handle.key, **told)

    def decide(self, meeting: int, members: list[str]) -> None:
        """Records the incarnations of the members that go on after a meeting."""
        with self.changed:
            _remember(self.decided, meeting, members)

    def close(self) -> None:
        """Ends the thread; waiting visitors lose their connection. May be called again."""
        try:
            self._wake.close()
        except OSError:
            pass  # already closed
        if self._thread is not threading.current_thread():
            self._thread.join(_GREETING_SECONDS)
        _listeners.discard(self)

    def forget(self) -> None:
        """Closes all sockets in the child of a fork, which would otherwise keep the port open after its parent has died."""
        for stream in (self._socket, self._wake, self._woken, *self._strangers):
            stream.close()
        for visitors in self.visitors.values():
            for visitor in visitors:
                visitor.stream.close()

    # The thread.

    def _run(self) -> None:
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        while True:
            for ready, _ in self._selector.select(_GREETING_SECONDS if self._strangers else None):
                if ready.data is None:
                    self._leave()
                    return
                # An earlier event of the batch may have dropped this stream.
                if ready.fileobj.fileno() >= 0:
                    ready.data(ready.fileobj)
            late = time.monotonic() - _GREETING_SECONDS
            for stream in [stream for stream, stranger in self._strangers.items() if stranger.since < late]:
                self._drop(stream)

    def _leave(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            stream, _ = listener.accept()
        except OSError:
            time.sleep(_PAUSE)  # no descriptors are left, or the client has gone
            return
        stream.setblocking(False)
        if len(self._strangers) >= _STRANGERS:
            self._drop(next(iter(self._strangers)))
        stranger = _Stranger()
        try:
            stream.send(stranger.nonce)
        except OSError:
            stream.close()
            return
        self._strangers[stream] = stranger
        self._selector.register(stream, selectors.EVENT_READ, self._read)

    def _read(self, stream: socket.socket) -> None:
        try:
            data = stream.recv(FRAME_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger = self._strangers.get(stream)
        # A visitor sends nothing after its greeting, so it has closed the stream or is not a member.
        if stranger is None or not data:
            self._drop(stream)
            return
        stranger.heard += data
        try:
            whole = unframed(self.handle.key, b"connect" + stranger.nonce, stranger.heard)
            if whole is None:
                return
            said = json.loads(whole[0])
            nonces = stranger.nonce + bytes.fromhex(said["nonce"])
            visitor = Visitor(stream, said, nonces)
            meeting = said.get("meeting")
            if not isinstance(meeting, int):
                raise ValueError("not a meeting's number")
        except (ValueError, KeyError, TypeError, AttributeError):
            self._drop(stream)
            return
        del self._strangers[stream]
        self._receive(visitor, meeting)

    def _receive(self, visitor: Visitor, meeting: int) -> None:
        key = self.handle.key
        with self.changed:
            if visitor.said.get("at") is None:
                visitor.dismiss(key, decided=self.decided.get(meeting))
            elif meeting in self.refused:
                visitor.dismiss(key, **self.refused[meeting])
            else:
                visitor.tell(key, missing=None)
                self.visitors.setdefault(meeting, []).append(visitor)
                self.changed.notify_all()

    def _drop(self, stream: socket.socket) -> None:
        self._selector.unregister(stream)
        self._strangers.pop(stream, None)
        stream.close()
        with self.changed:
            for meeting, visitors in list(self.visitors.items()):
                left = [visitor for visitor in visitors if visitor.stream is not stream]
                if len(left) != len(visitors):
                    self.visitors[meeting] = left
                    self.changed.notify_all()
                if not left:
                    del self.visitors[meeting]


def _remember(ends: dict[int, object], meeting: int, end: object) -> None:
    """Adds how a meeting has ended, and forgets the oldest ones."""
    ends.pop(meeting, None)
    ends[meeting] = end
    while len(ends) > _REMEMBERED:
        del ends[next(iter(ends))]


class _Stranger:
    def __init__(self) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.heard = b""
        self.since = time.monotonic()


class Visit:
    """A connection to another member's listener."""

    def __init__(self, stream: socket.socket, key: bytes, nonces: bytes) -> None:
        self._stream = stream
        self._key = key
        self._nonces = nonces
        self._told = 0
        self._heard = b""
        #: The listener's first message.
        self.greeting: dict | None = None

    def hear(self, deadline: float) -> dict | None:
        """Returns the listener's next message; ``None`` once it has gone. Raises :class:`TimeoutError` past the deadline."""
        while (body := self._next()) is None:
            self._stream.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._stream.recv(FRAME_BYTES)
            except socket.timeout:
                raise TimeoutError from None
            except OSError:
                data = b""
            if not data:
                return None
            self._heard += data
        return json.loads(body)

    def _next(self) -> bytes | None:
        whole = unframed(self._key, answer_context(self._nonces, self._told), self._heard)
        if whole is None:
            return None
        body, self._heard = whole
        self._told += 1
        return body

    def close(self) -> None:
        self._stream.close()


def connect(handle: Handle, seconds: float, **said) -> Visit:
    """Connects to a member's listener; blocks for at most ``seconds``.

    Raises :class:`Ended` if the member's process has ended or closed its listener, and :class:`Unreached` if that is unknown.
    """
    deadline = time.monotonic() + seconds
    near = handle.host == socket.gethostname()
    addresses = sorted(handle.addresses, key=lambda address: near != address.startswith(("127.", "::1")))
    causes, doubtful = [], False
    with contextlib.closing(_reached(addresses, handle.port, deadline)) as reached:
        for address, stream in reached:
            if isinstance(stream, OSError):
                doubtful = doubtful or stream.errno not in _NOBODY
                causes.append(f"{address}: {stream.strerror or stream}")
                continue
            try:
                visit = _introduced(stream, handle.key, deadline, said)
            except TimeoutError:
                stream.close()
                # The kernel has accepted the connection, but the process is stopped or busy.
                raise Unreached(f"{address} does not answer") from None
            except (OSError, ValueError):
                visit = None
            if visit is not None:
                return visit
            stream.close()
            causes.append(f"{address}: another process has taken port {handle.port}")
    text = "; ".join(causes[:4])
    raise Unreached(text) if doubtful or not causes else Ended(text)


def _reached(addresses: list[str], port: int, deadline: float) -> Iterator[tuple[str, socket.socket | OSError]]:
    """Yields each address with its stream or its error, as soon as it has one.

    The addresses are tried one after another, but no longer than a moment alone: some may lead to a network that drops all packets.
    """
    waiting = list(reversed(addresses))
    alone = min(_HEAD_START, (deadline - time.monotonic()) / (2 * len(addresses)))
    with selectors.PollSelector() as pending:
        try:
            while waiting or pending.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    for address in [key.data for key in pending.get_map().values()] + waiting:
                        yield address, TimeoutError("timed out")
                    return
                if waiting:
                    address = waiting.pop()
                    try:
                        pending.register(_connecting(address, port), selectors.EVENT_WRITE, address)
                    except OSError as problem:
                        yield address, problem
                        continue
                for key, _ in pending.select(min(alone, left) if waiting else left):
                    pending.unregister(key.fileobj)
                    code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code:
                        key.fileobj.close()
                    yield key.data, OSError(code, os.strerror(code)) if code else key.fileobj
        finally:
            for key in pending.get_map().values():
                key.fileobj.close()


def _connecting(address: str, port: int) -> socket.socket:
    stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    stream.setblocking(False)
    code = stream.connect_ex((address, port))
    if code not in (0, errno.EINPROGRESS):
        stream.close()
        raise OSError(code, os.strerror(code))
    return stream


def _introduced(stream: socket.socket, key: bytes, deadline: float, said: dict) -> Visit | None:
    stream.settimeout(max(deadline - time.monotonic(), 0.001))
    theirs = b""
    while len(theirs) < NONCE_BYTES:
        try:
            data = stream.recv(NONCE_BYTES - len(theirs))
        except socket.timeout:
            raise TimeoutError from None
        if not data:
            return None
        theirs += data
    ours = secrets.token_bytes(NONCE_BYTES)
    stream.sendall(framed(key, b"connect" + theirs, json.dumps({**said, "nonce": ours.hex()}).encode()))
    visit = Visit(stream, key, theirs + ours)
    # If another process has the port now, it cannot answer with the key.
    visit.greeting = visit.hear(deadline)
    return None if visit.greeting is None else visit


def _listen() -> socket.socket:
    first, last = _ports()
    problem: OSError | None = None
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        for port in range(first, last + 1):
            listener = None
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind((any_address, port))
                listener.listen(4096)
                listener.setblocking(False)
                return listener
            except OSError as error:
                problem = error
                if listener is not None:
                    listener.close()
    raise System(f"opening a port for other members: {problem}")


def _ports() -> tuple[int, int]:
    text = os.environ.get("KOLO_PORT_RANGE", "").strip()
    if not text:
        return 0, 0
    first, _, last = text.partition("-")
    try:
        return int(first), int(last)
    except ValueError:
        raise Configuration(f"KOLO_PORT_RANGE is '{text}', but must be like 40000-40099") from None


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _forget_all() -> None:
    for listener in list(_listeners):
        listener.forget()


os.register_at_fork(after_in_child=_forget_all)
