"""What torch's tools for observing operations see: events, sequence numbers, the work registry, the flight record."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from group_ranks import run
from torch._C._distributed_c10d import _get_work_registry_size, _set_allow_inflight_collective_as_graph_input

import kolo.torch
from kolo.torch import profiling


def events(profile, name):
    return [event for event in profile.events() if event.name == f"kolo:{name}"]


def profiled(call):
    with torch.profiler.profile(record_shapes=True) as profile:
        call()
    return profile


def started_and_waited():
    dist.all_reduce(torch.ones(3, 2), async_op=True).wait()


CALLS = {
    "all_reduce": (started_and_waited, [[3, 2]]),
    "all_reduce ": (lambda: dist.all_reduce(torch.ones(3, 2)), [[3, 2]]),
    "broadcast": (lambda: dist.broadcast(torch.ones(5), 0), [[5]]),
    "reduce": (lambda: dist.reduce(torch.ones(5), 0), [[5]]),
    "all_gather": (lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)), [[2]]),
    "all_gather  ": (lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(2)), [[2]]),
    "reduce_scatter": (lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4)), [[4]]),
    "all_to_all": (lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)), [[4]]),
    "barrier": (lambda: dist.barrier(), []),
}


def test_one_event_per_call_with_shapes():
    def body():
        for name, (call, shapes) in CALLS.items():
            found = events(profiled(call), name.strip())
            assert [event.input_shapes for event in found] == [shapes], (name, found)
            assert found[0].is_async, name
        coalesced = profiled(
            lambda: dist.group.WORLD.allgather_coalesced(
                [[torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]], [torch.ones(2), torch.ones(3)]
            ).wait()
        )
        names = [event.name for event in coalesced.events() if event.name.startswith("kolo:")]
        assert names == ["kolo:all_gather_coalesced"]

    run(2, body)


def test_an_event_lasts_as_long_as_its_operation():
    def body():
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if dist.get_rank() == 1:
            store.get("started")
            time.sleep(0.3)  # rank 0 must measure this
            dist.all_reduce(torch.ones(10))
            return

        def call():
            work = dist.all_reduce(torch.ones(10), async_op=True)
            store.set("started", "")
            work.wait()

        [event] = events(profiled(call), "all_reduce")
        assert event.cpu_time_total > 250_000, event.cpu_time_total

    run(2, body)


def test_events_of_messages():
    def body():
        x = torch.ones(4, 2)
        if dist.get_rank() == 0:
            profile = profiled(lambda: dist.send(x, 1) or dist.isend(x, 1).wait())
            names = ["send", "send"]
        else:
            profile = profiled(lambda: (dist.recv(x, 0), dist.recv(x)))
            names = ["recv", "recvAnySource"]
        found = [event for event in profile.events() if event.name.startswith("kolo:")]
        assert sorted(event.name for event in found) == [f"kolo:{name}" for name in names]
        assert all(event.input_shapes == [[4, 2]] for event in found)

    run(2, body)


def test_a_receive_that_outlasts_a_send_does_not_keep_its_event():
    def body():
        other = 1 - dist.get_rank()
        late = torch.zeros(1)
        with torch.profiler.profile() as profile:
            receive = dist.irecv(late, other, tag=1)
            began = time.monotonic()
            dist.all_reduce(torch.ones(3))
            assert time.monotonic() - began < 4
            dist.send(torch.ones(1), other, tag=1)
            receive.wait()
        assert len(events(profile, "all_reduce")) == 1

    run(2, body)


def test_events_end_with_the_wait_on_other_processors(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert profiling._functions() is None
    monkeypatch.setattr(profiling, "_thread_state", None)

    def body():
        for name, (call, shapes) in CALLS.items():
            found = events(profiled(call), name.strip())
            assert [event.input_shapes for event in found] == [shapes], (name, found)

    run(2, body)


def test_the_profiler_sets_no_time_limit():
    def body():
        dist.barrier()
        dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
        x = torch.zeros(1)
        if dist.get_rank() == 0:
            with torch.profiler.profile() as profile:
                receive = dist.irecv(x, 1)
                time.sleep(1)  # longer than the time-out, as between two steps of a pipeline
                dist.send(x, 1)
                receive.wait()
            assert x.item() == 7 and len(events(profile, "recv")) == 1
        else:
            dist.group.WORLD.set_timeout(timedelta(seconds=30))
            dist.recv(x, 0)
            dist.send(x.fill_(7), 0)

    run(2, body)


@pytest.mark.parametrize("backend", ["kolo", "cpu:kolo,cuda:gloo"])
def test_sequence_numbers(backend):
    def body():
        # In a mixed group, torch takes the group's sequence number from the backend that it treats as the main one.
        group = dist.group.WORLD._get_backend(torch.device("cpu"))
        before = group._get_sequence_number_for_group()
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        assert [work._get_sequence_number() for work in works] == [before + 1, before + 2, before + 3]
        dist.barrier()
        assert group._get_sequence_number_for_group() == before + 4

    run(2, body, backend=backend)


def test_the_work_registry():
    def body():
        x = torch.ones(3)
        _set_allow_inflight_collective_as_graph_input(True)
        dist.all_reduce(x, async_op=True)
        assert _get_work_registry_size() == 1
        torch.ops._c10d_functional.wait_tensor(x)
        assert _get_work_registry_size() == 0
        assert torch.all(x == 2)

    run(2, body)


def test_the_flight_record(tmp_path):
    """Torch's own analyser reads the record and finds that one rank did not enter the last collective."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    def body(folder):
        dist.all_reduce(torch.ones(7, 2))
        half = dist.new_group([0, 1])
        dist.broadcast(torch.ones(4, dtype=torch.int64), 0, group=half)
        store = dist.distributed_c10d._get_default_store()
        work = dist.all_gather_into_tensor(torch.ones(4), torch.ones(2), async_op=True) if dist.get_rank() == 0 else None
        path = kolo.torch.dump_flight_record(f"{folder}/trace_{dist.get_rank()}")
        assert path.endswith(f"trace_{dist.get_rank()}")
        store.set(f"dumped {dist.get_rank()}", "")
        store.wait(["dumped 0", "dumped 1"])
        if work is None:
            work = dist.all_gather_into_tensor(torch.ones(4), torch.ones(2), async_op=True)
        work.wait()

    run(2, body, str(tmp_path))
    arguments = JobConfig().parse_args([str(tmp_path), "--prefix", "trace_"])
    details, version = read_dir(arguments)
    first = details["trace_0"]["entries"] if "trace_0" in details else next(iter(details.values()))["entries"]
    assert [entry["profiling_name"] for entry in first][:1] == ["kolo:all_reduce"]
    assert {entry["state"] for entry in first} <= {"completed", "started"}
    database = build_db(details, arguments, version)
    names = {collective.collective_name: collective for collective in database.collectives}
    assert "kolo:all_reduce" in names and names["kolo:all_reduce"].pass_check
