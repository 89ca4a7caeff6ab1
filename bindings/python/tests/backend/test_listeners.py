"""The listeners of members: how others connect to them, and what a rush of strangers does."""

import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest

import kolo.listener
import kolo.meeting
from kolo.listener import Ended, Listener, Unreached, connect


@pytest.fixture
def listener():
    with closing(Listener(0)) as made:
        yield made


def stranger(listener):
    """Connects, and returns once the listener has accepted the connection."""
    stream = socket.create_connection(("127.0.0.1", listener.handle.port), 20)
    assert len(stream.recv(16)) == 16
    return stream


def test_an_event_of_a_connection_that_has_just_been_dropped(listener, monkeypatch):
    with stranger(listener) as first, stranger(listener) as second, ExitStack() as others:
        with listener.changed:
            # The thread drops this one, and then waits for the lock.
            second.sendall(b"\xff" * 4)
            assert second.recv(1) == b""
            # Meanwhile a connection comes, for which the oldest must go; and the oldest sends something.
            monkeypatch.setattr(kolo.listener, "_STRANGERS", 1)
            others.enter_context(socket.create_connection(("127.0.0.1", listener.handle.port), 20))
            first.sendall(b"\0")
        connect(listener.handle, 20, meeting=1).close()


def dropping(stack, address, port):
    """Makes the port of an address drop all packets that open connections, as a firewall does."""
    full = stack.enter_context(socket.socket())
    full.bind((address, port))
    full.listen(0)
    # Enough for the queue to be full. Nobody accepts them.
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex((address, port))


def test_an_address_that_drops_packets_holds_up_no_other(monkeypatch):
    def only_here():
        made = socket.create_server(("127.0.0.1", 0))
        made.setblocking(False)
        return made

    monkeypatch.setattr(kolo.listener, "_listen", only_here)
    with ExitStack() as stack:
        listener = stack.enter_context(closing(Listener(0)))
        for address in ("127.0.0.2", "127.0.0.3"):
            dropping(stack, address, listener.handle.port)
        both = listener.handle._replace(addresses=("127.0.0.2", "127.0.0.3", "127.0.0.1"))
        began = time.monotonic()
        connect(both, 60, meeting=1).close()
        assert time.monotonic() - began < 30
        # One limit for all addresses, after which nobody knows whether the process is alive.
        began = time.monotonic()
        with pytest.raises(Unreached, match="127.0.0.2: timed out"):
            connect(both._replace(addresses=("127.0.0.2", "127.0.0.3")), 0.2, meeting=1)
        assert time.monotonic() - began < 30
        # Nobody listens at these.
        with pytest.raises(Ended, match="127.0.0.4: Connection refused"):
            connect(both._replace(addresses=("127.0.0.4", "127.0.0.5")), 60, meeting=1)


def test_a_member_that_has_ended_is_noticed_beside_many_that_cannot_be_reached(listener, monkeypatch):
    noticed = threading.Event()

    def no_answer(handle, _seconds, **_said):
        if handle.number == 3:
            raise Ended("it has ended")
        assert noticed.wait(20)
        raise Unreached("no answer")

    monkeypatch.setattr(kolo.meeting, "connect", no_answer)
    others = [str(listener.handle._replace(number=number)) for number in range(1, 4)]
    meeting = kolo.meeting.Meeting(listener, 1, [str(listener.handle), *others], 20)
    try:
        with pytest.raises(kolo.PeerLost, match="it has ended") as lost:
            meeting._gather()
        assert lost.value.peer == 3
    finally:
        noticed.set()
