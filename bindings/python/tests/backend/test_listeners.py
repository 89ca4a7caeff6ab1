"""The listeners of members: how others connect to them, and what a rush of strangers does."""

import socket
from contextlib import ExitStack, closing

import pytest

import kolo.listener
from kolo.listener import Listener, connect


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
