"""Processes that end wrongly or without notice. They are programs, since forks of a test end differently."""

import subprocess
import textwrap

import pytest
from harness import LIMIT, programs, python

PREAMBLE = """
import os, sys
import torch, torch.distributed as dist
import kolo.torch
from datetime import timedelta
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("kolo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=ranks,
                        timeout=timedelta(seconds=60))
x = torch.ones(1000)
dist.all_reduce(x)
"""


def start(tmp_path, ranks, body, limit=LIMIT):
    program = tmp_path / "program.py"
    program.write_text(PREAMBLE + textwrap.dedent(body))
    environments = [{"RANK": str(r), "WORLD_SIZE": str(ranks), "MEET": str(tmp_path / "meet")} for r in range(ranks)]
    return programs([python(program)] * ranks, environments, limit=limit, check=False)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="not at all"),
        pytest.param("works = [dist.all_reduce(x, async_op=True) for _ in range(3)]", id="with works outstanding"),
        pytest.param(
            "futures = [dist.all_reduce(x, async_op=True).get_future() for _ in range(3)]", id="with futures outstanding"
        ),
        pytest.param("group = dist.new_group(); dist.barrier(group)", id="with groups"),
        pytest.param("dist.isend(x, (rank + 1) % ranks); dist.irecv(x, (rank + 1) % ranks).wait()", id="with messages"),
    ],
)
def test_not_destroyed(tmp_path, body):
    for end in start(tmp_path, 2, body):
        assert end.code == 0, end
        assert "rror" not in end.text.replace("before program exit", ""), end


def test_destroyed_twice(tmp_path):
    ended = start(
        tmp_path,
        2,
        """
        group = dist.group.WORLD
        dist.destroy_process_group()
        try:
            dist.destroy_process_group()
        except (AssertionError, ValueError) as error:
            print("refused:", error)
        group.shutdown()  # directly, once more: nothing happens
        try:
            group.allreduce([x]).wait()
        except dist.DistBackendError as error:
            print("closed:", error)
        """,
    )
    for end in ended:
        assert end.code == 0 and "refused" in end.text and "the communicator is closed" in end.text, end


def test_made_again_after_destroying(tmp_path):
    ended = start(
        tmp_path,
        2,
        """
        for i in range(3):
            dist.destroy_process_group()
            dist.init_process_group("kolo", init_method=f"file://{os.environ['MEET']}{i}", rank=rank, world_size=ranks)
            dist.all_reduce(x)
        dist.destroy_process_group()
        """,
    )
    assert [end.code for end in ended] == [0, 0], ended


def test_a_group_that_was_reconfigured_is_not_destroyed(tmp_path):
    """The process ends, although its port is open and the earlier communicator is still there."""
    ended = start(
        tmp_path,
        2,
        """
        dist.destroy_process_group()
        store = dist.FileStore(os.environ["MEET"] + "2", ranks)
        dist.init_process_group("kolo", store=store, rank=rank, world_size=ranks, enable_reconfigure=True)
        store.set(f"{rank}", dist._get_reconfigure_handle())
        handles = [store.get(f"{other}").decode() for other in range(ranks)]
        for uuid in range(3):
            dist._reconfigure(uuid, handles)
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        print("reconfigured", dist.get_world_size())
        """,
    )
    for end in ended:
        assert end.code == 0 and "reconfigured 2" in end.text and "rror" not in end.text, end


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["sys.exit(7)", "raise ValueError('broken')", "os._exit(7)"])
def test_exit_in_the_middle(tmp_path, who, how):
    ended = start(
        tmp_path,
        3,
        f"""
        for step in range(100_000):
            if rank == {who} and step == 20:
                {how}
            dist.all_reduce(x)
        """,
    )
    for rank, end in enumerate(ended):
        if rank == who:
            assert end.code in (1, 7), end
        else:
            assert end.code == 1, end
            assert "DistBackendError" in end.text or "kolo.torch.errors." in end.text, end
            assert f"rank {who}" in end.text, end
        # They ended because of the death, and not at the group's time-out.
        assert end.seconds < ended[who].seconds + 40, ended


def test_terminated_by_its_user(tmp_path):
    """Ctrl-C ends a program that waits for another rank, at the latest when the time-out has passed."""
    ended = start(
        tmp_path,
        2,
        """
        import signal, threading
        if rank == 1:
            dist.distributed_c10d._get_default_store().get("over")
            sys.exit(0)
        dist.group.WORLD.set_timeout(timedelta(seconds=2))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            dist.all_reduce(x)
        except (KeyboardInterrupt, dist.DistBackendError) as error:
            print("ended by", type(error).__name__)
        dist.distributed_c10d._get_default_store().set("over", "")
        """,
    )
    assert "ended by" in ended[0].text, ended


def test_no_process_is_left(tmp_path):
    start(tmp_path, 2, "os._exit(0)")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert left == "", left
