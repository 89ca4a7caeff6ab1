"""Probes: from any source, with any tag, with and without waiting."""

import time

import numpy as np
import pytest
from array_ranks import run

import kolo


def test_messages_of_unknown_length_and_type():
    def body(comm):
        me = comm.rank
        if me > 0:
            comm.send(np.arange(10 * me, dtype=np.int16), 0, tag=me)
            comm.send_object({"from": me}, 0, tag=40 + me)
            comm.send(np.full((me, 3), 0.5 + me), 0, tag=20 + me)
            comm.send(np.full(me, 1j), 0, tag=20 + me)
            return
        got = []
        for _ in range(6):
            found = comm.probe()
            assert comm.probe(found.source, found.tag) == found
            room = np.empty(found.count, found.dtype)
            assert comm.recv(room, found.source, found.tag) == found.source
            got.append((*found, room.tolist()))
        for rank in (1, 2):
            first, second, third = (found for found in got if found[0] == rank)
            assert first == (rank, rank, 10 * rank, "int16", list(range(10 * rank)))
            assert second == (rank, 20 + rank, 3 * rank, "float64", [0.5 + rank] * 3 * rank)
            assert third == (rank, 20 + rank, 2 * rank, "float64", [0.0, 1.0] * rank)
        # Probes for arrays do not see objects, and have not taken any.
        assert comm.probe(wait=False) is None
        for _ in range(2):
            source, tag = comm.probe_object()
            assert comm.recv_object(source, tag) == {"from": source} and tag == 40 + source
        assert comm.probe_object(wait=False) is None

    run(3, body)


def test_without_waiting():
    def body(comm):
        other = 1 - comm.rank
        assert comm.probe(other, wait=False) is None
        comm.barrier()
        comm.send(np.zeros(5, np.uint16), other, tag=3)
        comm.send(b"bytes", other, tag=4)
        deadline = time.monotonic() + 30
        while (found := comm.probe(other, 4, wait=False)) is None:
            assert time.monotonic() < deadline
        assert found == kolo.Waiting(other, 4, 5, "uint8")
        assert comm.probe(tag=3) == (other, 3, 5, "uint16")
        work = comm.recv_start(np.empty(5, np.uint16), other, 3)
        work.wait()
        assert comm.recv(bytearray(5), tag=4) == other

    run(2, body)


def test_wrong_probes():
    def body(comm):
        with pytest.raises(kolo.Usage, match="out of range"):
            comm.probe(1)
        with pytest.raises(kolo.Usage, match="below 2\\^32"):
            comm.probe(tag=-1)
        with pytest.raises(kolo.Usage, match="below 2\\^32"):
            comm.probe(source=-1)
        with pytest.raises(kolo.Usage, match="below 2\\^30"):
            comm.probe_object(tag=1 << 30)

    run(1, body)
