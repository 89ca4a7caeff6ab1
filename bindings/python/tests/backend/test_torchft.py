"""Kolo as a process group of torchft: its contract, and training with its Manager while replicas die and join."""

import os
import signal
import time
from datetime import timedelta

import harness
import pytest
import torch
import torch._dynamo  # noqa: F401  DDP would import this in each rank; here it is imported once
import torch.distributed as dist

pytest.importorskip("torchft", reason="torchft is not installed")

from torch._C._distributed_c10d import (  # noqa: E402
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)
from torch.distributed import ReduceOp  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402
from torchft.ddp import DistributedDataParallel  # noqa: E402
from torchft.manager import Manager  # noqa: E402
from torchft.optim import OptimizerWrapper  # noqa: E402
from torchft.process_group import ErrorSwallowingProcessGroupWrapper, ProcessGroup  # noqa: E402

import kolo.torch  # noqa: E402
from kolo.torchft import ProcessGroupKolo  # noqa: E402

SECONDS = 30


def written(path, text):
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.write(text)
    os.rename(f"{path}.{os.getpid()}", path)


def read(path):
    deadline = time.monotonic() + SECONDS
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return open(path).read()


def served(rank, folder):
    """A store that rank 0 serves, and its address."""
    store = None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=SECONDS), wait_for_workers=False)
        written(f"{folder}/address", f"127.0.0.1:{store.port}")
    address = read(f"{folder}/address")
    if store is None:
        store = dist.TCPStore("127.0.0.1", int(address.split(":")[1]), None, False, timedelta(seconds=SECONDS))
    return store, address


def configured(rank, ranks, folder):
    """A group whose members have met, and the store at whose address they did."""
    store, address = served(rank, folder)
    group = ProcessGroupKolo(timeout=timedelta(seconds=SECONDS))
    group.configure(f"{address}/1", f"replica{rank}", rank, ranks)
    sum_is(group, ranks)
    return store, address, group


def sum_is(group, expected, opts=None):
    x = torch.ones(5)
    group.allreduce([x], ReduceOp.SUM if opts is None else opts).wait()
    assert x.tolist() == [expected] * 5


def test_operations():
    """All operations that torchft calls, with the options that it passes."""

    def body(rank, ranks, folder):
        _, address = served(rank, folder)
        group = ProcessGroupKolo(timeout=timedelta(seconds=SECONDS))
        assert isinstance(group, ProcessGroup) and group.getBackendName() == "torchft-kolo"
        with pytest.raises(kolo.torch.Usage, match="no members yet: call configure first"):
            sum_is(group, ranks)
        for round in range(3):
            group.configure(f"{address}/round/{round}", f"replica{rank}", rank, ranks, round, 0, 1, list(range(ranks)))
            assert (group.rank(), group.size()) == (rank, ranks)
            assert dist.get_world_size(group) == ranks
            sum_is(group, ranks)
            sum_is(group, ranks, AllreduceOptions())
        x = torch.full((ranks, 2), float(rank))
        group.allreduce_coalesced([x, x.clone()], AllreduceCoalescedOptions()).get_future().wait()
        mine = torch.tensor([float(rank)])
        lists = [torch.zeros(1) for _ in range(ranks)]
        group.allgather([lists], [mine], AllgatherOptions()).wait()
        assert torch.cat(lists).tolist() == list(range(ranks))
        whole = torch.zeros(ranks)
        group.allgather_into_tensor_coalesced([whole], [mine], AllgatherOptions()).wait()
        assert whole.tolist() == list(range(ranks))
        group.alltoall_base(whole, torch.full((ranks,), float(rank)), [1] * ranks, [1] * ranks, AllToAllOptions()).wait()
        assert whole.tolist() == list(range(ranks))
        group.reduce_scatter([mine], [[torch.ones(1)] * ranks], ReduceScatterOptions()).wait()
        assert mine.item() == ranks
        group.reduce_scatter_tensor_coalesced([mine], [torch.ones(ranks)], ReduceScatterOptions()).wait()
        group.broadcast([mine.fill_(rank)], BroadcastOptions()).wait()
        assert mine.item() == 0
        group.broadcast_one(mine.fill_(rank), ranks - 1).wait()
        assert mine.item() == ranks - 1
        works = group.send([mine], (rank + 1) % ranks, 3), group.recv([torch.zeros(1)], (rank - 1) % ranks, 3)
        for work in works:
            work.wait()
        group.barrier(BarrierOptions()).wait()
        assert group.errored() is None
        group.shutdown()
        group.configure(f"{address}/after", f"replica{rank}", rank, ranks)
        sum_is(group, ranks)
        group.shutdown()

    harness.forked(3, body)


def test_errors_last_until_it_is_configured():
    def body(rank, ranks, folder):
        store, address, group = configured(rank, ranks, folder)
        group.abort()
        assert isinstance(group.errored(), kolo.torch.Aborted)
        with pytest.raises(kolo.torch.Aborted):
            sum_is(group, ranks)
        group.configure(f"{address}/2", f"replica{rank}", rank, ranks)
        assert group.errored() is None
        sum_is(group, ranks)
        if rank == 1:
            store.wait(["3"])
            os.kill(os.getpid(), signal.SIGKILL)
        store.add("ready", 1)
        swallowing = ErrorSwallowingProcessGroupWrapper(group)
        store.set("3", "") if rank == 0 else None
        while (work := group.allreduce([torch.ones(5)], ReduceOp.SUM)).wait():
            pass
        assert isinstance(group.errored(), kolo.torch.PeerLost) and group.errored().peer == 1
        with pytest.raises(RuntimeError, match="rank 1 is lost"):
            work.get_future().wait()
        with pytest.raises(kolo.torch.PeerLost):
            group.allreduce([torch.ones(5)], ReduceOp.SUM)
        # As torchft expects: the error is kept, and the call looks as if it had succeeded.
        swallowing.allreduce([torch.ones(2)], AllreduceOptions()).wait()
        assert swallowing.error() is not None
        group.set_timeout(timedelta(seconds=1))
        if rank == 0:
            # No other rank comes to this address.
            began = time.monotonic()
            with pytest.raises(kolo.torch.Error):
                group.configure(f"{address}/nobody", "replica0", 0, 2)
            assert time.monotonic() - began < 15 and group.errored() is not None
        group.set_timeout(timedelta(seconds=SECONDS))
        group.configure(f"{address}/3", f"replica{rank}", rank // 2, ranks - 1)
        sum_is(group, ranks - 1)
        store.add("over", 1)
        while rank == 0 and store.add("over", 0) < 2:
            time.sleep(0.01)

    ended = harness.forked(3, body, check=False)
    assert [end.code for end in ended] == [0, -signal.SIGKILL, 0], ended


def test_a_blocking_call_raises():
    def body(rank, ranks, folder):
        # Its store serves the others until this rank ends.
        _store, _, group = configured(rank, ranks, folder)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        blocking = AllToAllOptions()
        blocking.asyncOp = False
        with pytest.raises(kolo.torch.PeerLost):
            group.alltoall_base(torch.zeros(3), torch.ones(3), [1, 2], [1, 2], blocking)
        with pytest.raises(kolo.torch.Error):
            group.alltoall_base(torch.zeros(3), torch.ones(3), [1, 2], [1, 2], blocking)

    ended = harness.forked(2, body, check=False)
    assert [end.code for end in ended] == [0, -signal.SIGKILL], ended


DIES_AT, TOGETHER = 4, 5


def train(rank, folder, dies_at=None):
    """A replica of one process: it has its own store, a model, and torchft's Manager on a Kolo group."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=SECONDS), wait_for_workers=False)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    inner = torch.optim.SGD(model.parameters(), lr=0.05)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    def state():
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    group = ProcessGroupKolo(timeout=timedelta(seconds=10))
    limit = timedelta(seconds=20)
    manager = Manager(
        pg=group, load_state_dict=load, state_dict=state, min_replica_size=2, replica_id=f"replica{rank}", rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=read(f"{folder}/lighthouse"), hostname="127.0.0.1",
        timeout=limit, quorum_timeout=limit, connect_timeout=limit, use_async_quorum=False,
    )  # fmt: skip
    ddp, optimizer = DistributedDataParallel(manager, model), OptimizerWrapper(manager, inner)
    sizes = []
    # Until some steps have been made with three replicas again; the replicas count the same steps, so all stop at the same one.
    while sum(size == 3 for step, size in sizes if step > DIES_AT) < TOGETHER:
        optimizer.zero_grad()
        if manager.current_step() == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        ddp(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        sizes.append((manager.current_step(), manager.num_participants()))
        if manager.current_step() > DIES_AT + 3:
            written(f"{folder}/later", "")
            # Gives the new replica time to join.
            time.sleep(0.05)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    written(f"{folder}/weights{rank}", " ".join(value.hex() for value in weights.tolist()))
    # A replica that has finished leaves only when all have, so that no other one loses it in its last step.
    for other in (1, 2, 4):
        read(f"{folder}/weights{other}")
    manager.shutdown(wait=False)
    print("replicas", sizes)


def test_replicas_die_and_come():
    """One of three replicas is killed; the others go on, and a new one gets their state and trains with them."""

    def body(rank, ranks, folder):
        if rank == 0:
            lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
            written(f"{folder}/lighthouse", lighthouse.address())
            for replica in (1, 2, 4):
                read(f"{folder}/weights{replica}")
            time.sleep(0.5)
            lighthouse.shutdown()
            weights = [read(f"{folder}/weights{replica}") for replica in (1, 2, 4)]
            assert len(set(weights)) == 1, "all have the same bits"
        elif rank == 4:
            read(f"{folder}/later")
            train(rank, folder)
        else:
            train(rank, folder, DIES_AT if rank == 3 else None)

    ended = harness.forked(5, body, check=False)
    assert [end.code for end in ended] == [0, 0, 0, -signal.SIGKILL, 0], "\n".join(map(str, ended))
