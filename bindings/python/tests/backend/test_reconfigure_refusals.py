"""What ``reconfigure`` refuses, and what strangers get who connect to a member's port."""

import socket
import threading
import time

import group_ranks
import harness
import pytest
import torch.distributed as dist
from members import SECONDS, expect, reconfigure, run
from torch._C._distributed_c10d import ErrorType

import kolo.listener
import kolo.torch


def test_a_uuid_serves_once():
    def body(me):
        reconfigure(1, me.handles("a"))
        with pytest.raises(RuntimeError, match="already used"):
            reconfigure(1, me.handles("b"), 5)
        # The group is unchanged.
        expect(me.start, 3)

    run(3, body)


def test_a_uuid_that_only_the_first_has_used():
    def body(me):
        handles = me.handles("a")
        if me.start == 0:
            reconfigure(7, handles[:1])
        me.meet_in_store("used")
        began = time.monotonic()
        if me.start != 0:
            with pytest.raises(RuntimeError, match="already used"):
                reconfigure(7, handles)
            assert time.monotonic() - began < SECONDS / 2
        me.meet_in_store("told")

    run(3, body)


def test_a_late_member_gets_the_error_of_the_others():
    def body(me):
        handles = me.handles("a")
        if me.start == 2:
            me.store.wait(["over-0", "over-1"])
        with pytest.raises(kolo.torch.Timeout, match="had not come") as raised:
            reconfigure(7, handles, 1)
        assert raised.value.peer == 2
        me.meet_in_store("over")
        # The group is unchanged, and meets again.
        reconfigure(8, handles)
        expect(me.start, 3)

    run(3, body)


def test_a_listener_forgets_the_oldest_meetings():
    listener = kolo.listener.Listener(0)
    try:
        for meeting in range(3000):
            listener.refuse(meeting, "over")
            listener.decide(meeting, ["a"])
        for ends in (listener.refused, listener.decided):
            assert len(ends) <= 1024 and 2999 in ends and 0 not in ends
    finally:
        listener.close()


def test_lists_that_make_no_sense():
    def body(me):
        mine, other = dist._get_reconfigure_handle(), me.handles("a")[1 - me.start]
        for uuid, handles, text in (
            (1, [], "no handles"),
            (2, [other], "own handle is not in the list"),
            (3, [mine, mine], "in the list twice"),
            (4, [mine, "gloo:0:1:2:"], "not a handle that Kolo made"),
            (5, [mine, mine.replace("kolo1", "kolo2")], "not a handle that Kolo made"),
        ):
            with pytest.raises(kolo.torch.Usage, match=text):
                reconfigure(uuid, handles)
        reconfigure(6, me.handles("b"))
        expect(me.start, 2)

    run(2, body)


@pytest.mark.parametrize("how", ["order", "length"])
def test_lists_that_differ(how):
    def body(me):
        handles = me.handles("a")
        mine = handles if me.start != 2 else [handles[0], handles[2]] if how == "length" else [handles[i] for i in (0, 2, 1)]
        with pytest.raises(kolo.torch.Error, match="another list of members"):
            reconfigure(1, mine)
        reconfigure(2, handles)
        expect(me.start, 3)

    run(3, body)


def test_who_does_not_come_is_named():
    """It is alive but does not call: all that have come name it in a time-out error. The earlier communicator stays."""

    def body(me):
        handles = me.handles("a")
        reconfigure(1, handles)
        if me.start != 1:
            began = time.monotonic()
            with pytest.raises(kolo.torch.Timeout, match=r"[Tt]imed out: .*rank 1 \(process \d+ on .*had not come") as caught:
                reconfigure(2, handles, 1.0)
            assert 0.9 < time.monotonic() - began < 15 and caught.value.peer == 1
            assert me.backend.get_error() == ErrorType.SUCCESS
        me.meet_in_store("late")
        expect(me.start, 3)
        if me.start == 1:
            with pytest.raises(RuntimeError, match="already used"):
                reconfigure(2, handles, 5)
        reconfigure(3, handles)
        expect(me.start, 3)

    run(3, body)


def test_the_first_does_not_come():
    def body(me):
        handles = me.handles("a")
        if me.start != 0:
            with pytest.raises(kolo.torch.Timeout, match=r"rank 0 \(process \d+ on .*had not come"):
                reconfigure(2, handles, 1.0)
        me.meet_in_store("late")
        reconfigure(3, handles)
        expect(me.start, 3)

    run(3, body)


def test_flags_that_cannot_be_honoured():
    """Such flags are refused, never ignored."""

    def body(rank, ranks, folder):
        for number, backend in enumerate(("cpu:gloo,cuda:kolo", "cuda:gloo,cpu:kolo")):
            store = dist.FileStore(f"{folder}/{number}", ranks)
            with pytest.raises(kolo.torch.Unsupported, match="other backends besides Kolo cannot be reconfigured"):
                dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, enable_reconfigure=True)
        # Torch creates such groups as if Kolo were alone, and names the other backend only later.
        store = dist.FileStore(f"{folder}/last", ranks)
        dist.init_process_group("cuda:kolo,cpu:gloo", store=store, rank=rank, world_size=ranks, enable_reconfigure=True)
        with pytest.raises(kolo.torch.Unsupported, match="would belong to Kolo entirely"):
            dist._get_reconfigure_handle()
        dist.destroy_process_group()
        group_ranks.join(rank, ranks, folder, name="plain")
        assert not dist._supports_reconfigure()
        with pytest.raises(kolo.torch.Unsupported, match="enable_reconfigure=True"):
            dist._get_reconfigure_handle()

    harness.forked(2, body)


def test_one_thread_at_a_time():
    """A second thread gets an error at once, and can still ask for the handle."""

    def body(me):
        handles = me.handles("a")
        if me.start == 0:
            waiting = threading.Thread(target=reconfigure, args=(1, handles))
            waiting.start()
            deadline = time.monotonic() + SECONDS
            while not me.group._membership._meeting.locked():
                assert time.monotonic() < deadline
            with pytest.raises(kolo.torch.Usage, match="another thread is already reconfiguring"):
                reconfigure(2, handles)
            assert dist._get_reconfigure_handle() == handles[0]
        me.meet_in_store("refused")
        if me.start == 0:
            waiting.join()
        else:
            reconfigure(1, handles)
        expect(me.start, 2)

    run(2, body)


# Strangers.


def test_strangers_learn_nothing():
    """Garbage, silence and wrong keys at the port get no answer, and the members still meet."""

    def body(me):
        handles = me.handles("a")
        port = int(handles[0].split(":")[4])
        silent = socket.create_connection(("127.0.0.1", port))
        for junk in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 4096, b"\0\0\0\2{}" + bytes(32), b""):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
                heard = b""
                while data := stranger.recv(4096):
                    heard += data
                assert len(heard) == 16, "a nonce and nothing else"
        wrong = handles[0].split(":")
        wrong[3] = "0" * 32
        if me.start == 1:
            with pytest.raises(kolo.torch.PeerLost, match="another process has taken port"):
                reconfigure(1, [":".join(wrong), handles[1]], 5)
        me.meet_in_store("tried")
        reconfigure(2, handles)
        expect(me.start, 2)
        silent.close()

    run(2, body)


def test_no_thread_and_no_port_is_left():
    def body(me):
        before = {thread.name for thread in threading.enumerate()}
        reconfigure(1, me.handles("a"))
        expect(me.start, 2)
        port = int(dist._get_reconfigure_handle().split(":")[4])
        me.meet_in_store("met")
        dist.destroy_process_group()
        assert {thread.name for thread in threading.enumerate()} <= before
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        dist.init_process_group("kolo", store=dist.HashStore(), rank=0, world_size=1)

    run(2, body)
