"""Processes that draw their ranks, and jobs that fail while they do so."""

import json
import os
import socket
import time

import harness
import numpy as np
import pytest
from launchers import SCHEMES, free_port, meeting_places

import kolo
from kolo.launchers import draw_where_needed
from kolo.ranks import _this_process, draw


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_are_drawn(scheme):
    def body(_rank, ranks, folder, port):
        url = meeting_places(folder, port)[scheme]
        for _ in range(3):
            with kolo.init(url, world_size=ranks, join_timeout=30) as comm:
                ranks_seen = comm.all_gather(np.array([comm.rank]))
                assert np.array_equal(ranks_seen.ravel(), np.arange(ranks))
        assert not os.path.exists(f"{folder}/meet.ranks")

    harness.forked(4, body, free_port())


def test_processes_of_an_earlier_job_do_not_count(tmp_path):
    path = tmp_path / "meet"
    here = {"of": 2, **_this_process(), "until": time.time() + 600}
    # Its number was given to another process since.
    dead = {**here, "started": "1"}
    late = {"of": 2, "host": "elsewhere", "pid": 1, "until": time.time() - 1}
    (tmp_path / "meet.ranks").write_text(json.dumps({0: dead, 1: late}))
    assert draw(f"file://{path}", 2, 10) == 0
    assert draw(f"file://{path}", 2, 10) == 1
    assert not (tmp_path / "meet.ranks").exists(), "the last to come leaves nothing behind"


def test_processes_of_another_container_with_this_hosts_name_count(tmp_path):
    there = {"of": 3, **_this_process(), "namespace": "pid:[1]", "pid": 2**22 + 1, "until": time.time() + 600}
    (tmp_path / "meet.ranks").write_text(json.dumps({0: there}))
    assert draw(f"file://{tmp_path}/meet", 3, 10) == 1


def test_a_path_that_looks_like_a_rank_is_a_path(tmp_path):
    (tmp_path / "rank=8").mkdir()
    url = f"file://{tmp_path}/rank=8/job"
    assert draw_where_needed(url, None, 2, 10) == 0
    assert draw_where_needed(url + "?rank=1", None, 2, 10) is None


def test_jobs_that_share_a_file_are_told(tmp_path):
    url = f"file://{tmp_path}/meet"
    assert draw(url, 3, 10) == 0
    with pytest.raises(kolo.Join, match=r"world sizes \[2, 3\]"):
        draw(url, 2, 10)
    (tmp_path / "meet.ranks").write_text("somebody's shopping list")
    with pytest.raises(kolo.Join, match="not one of Kolo's"):
        draw(url, 3, 10)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:{}", "multicast://239.255.72.1:{}/job?interface=127.0.0.1"])
def test_those_who_do_not_come_are_counted(url):
    url = url.format(free_port())
    began = time.monotonic()
    with pytest.raises(kolo.Join, match="1 of 2 processes"):
        draw(url, 2, 0.5)
    assert time.monotonic() - began < 10
    # Nothing is left over, in particular the port is free.
    assert draw(url, 1, 10) == 0


def test_port_sizes_that_differ():
    def body(rank, ranks, folder, port):
        sizes = (2, 3)
        # The process that opens the port decides the size, and waits in vain; the other gets an error.
        with pytest.raises(kolo.Join, match="did not come|ranks, but this process"):
            draw(f"tcp://127.0.0.1:{port}", sizes[rank], 3)

    harness.forked(2, body, free_port())


def test_urls_that_give_out_no_ranks():
    with pytest.raises(kolo.Usage, match="cannot assign ranks"):
        draw("udp://somewhere:1", 2, 1)
    with pytest.raises(kolo.Usage, match="at least one rank"):
        draw("file:///tmp/x", 0, 1)
    with pytest.raises(kolo.Usage, match="group, a port and a job"):
        draw("multicast://239.1.1.1:29500", 2, 1)
