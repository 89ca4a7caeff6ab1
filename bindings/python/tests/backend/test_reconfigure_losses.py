"""Groups that continue after losses: processes are killed by kill -9 or stopped, and the remaining ones reconfigure by themselves."""

import os
import random
import signal
import statistics
import threading
import time
from datetime import timedelta

import harness
import pytest
import torch
import torch._dynamo  # noqa: F401  DDP would import this in each rank; here it is imported once
import torch.distributed as dist
from members import SECONDS, reconfigure
from torch.nn.parallel import DistributedDataParallel

import kolo.torch


def run(ranks, body, *arguments, killed=()):
    """Runs the body on the ranks of a reconfigured group; fails if a rank fails that is not among ``killed``."""
    ended = harness.forked(ranks, _member, body, arguments, check=False)
    wrong = [end for rank, end in enumerate(ended) if end.code != (-signal.SIGKILL if rank in killed else 0)]
    assert not wrong, "\n".join(map(str, wrong))
    return ended


def _member(rank, ranks, folder, body, arguments):
    # As under torchrun, rank 0 serves the store, which ends with it.
    port = f"{folder}/port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, True, timedelta(seconds=SECONDS), wait_for_workers=False)
        with open(f"{port}.new", "w") as file:
            file.write(str(store.port))
        os.rename(f"{port}.new", port)
    else:
        deadline = time.monotonic() + SECONDS
        while not os.path.exists(port):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(open(port).read()), ranks, False, timedelta(seconds=SECONDS))
    timeout = timedelta(seconds=SECONDS)
    dist.init_process_group("kolo", store=store, rank=rank, world_size=ranks, timeout=timeout, enable_reconfigure=True)
    store.set(f"{rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"{other}").decode() for other in range(ranks)]
    reconfigure(1, handles)
    body(rank, ranks, *arguments)
    dist.destroy_process_group()


def go_on():
    """What a program does after a loss, repeated if another process dies meanwhile."""
    while True:
        uuid, handles = dist.group.WORLD.kolo_survivors()
        try:
            reconfigure(uuid, handles)
            return
        except kolo.torch.PeerLost:
            continue


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def sum_of_ones():
    x = torch.ones(1000)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full_like(x, x[0].item()))
    return int(x[0])


@pytest.mark.parametrize("who", [0, 1, 3])
def test_any_rank_may_be_killed(who):
    def body(rank, ranks):
        assert sum_of_ones() == ranks
        if rank == who:
            die()
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            for _ in range(100_000):
                sum_of_ones()
        lost = time.monotonic()
        go_on()
        assert sum_of_ones() == ranks - 1
        assert dist.get_rank() == rank - (rank > who) and dist.get_world_size() == ranks - 1
        print(f"noticed after {lost - began:.4f} s, summed again {time.monotonic() - lost:.4f} s later")

    print(*(end.text for end in run(4, body, killed=[who])))


def test_one_after_the_other_until_one_is_left():
    """Each time the first dies, the one that serves the store, leads the meeting and is rank 0."""

    def body(rank, ranks):
        for left in range(ranks - 1, 0, -1):
            if dist.get_rank() == 0:
                die()
            with pytest.raises(dist.DistBackendError):
                for _ in range(100_000):
                    sum_of_ones()
            go_on()
            assert sum_of_ones() == left

    run(4, body, killed=[0, 1, 2])


def test_two_at_once():
    def body(rank, ranks):
        if rank in (0, 2):
            die()
        with pytest.raises(dist.DistBackendError):
            for _ in range(100_000):
                sum_of_ones()
        go_on()
        assert sum_of_ones() == ranks - 2

    run(5, body, killed=[0, 2])


@pytest.mark.parametrize("who", [1, 2])
def test_killed_while_the_others_meet(who):
    """Another rank, the first of those left or not, is killed after all have agreed on who is left."""

    def body(rank, ranks):
        if rank == 0:
            die()
        with pytest.raises(dist.DistBackendError):
            for _ in range(100_000):
                sum_of_ones()
        if rank == who:
            dist.group.WORLD.kolo_survivors()
            die()
        began = time.monotonic()
        go_on()
        # They noticed that its process ended, and did not wait for the time-out.
        assert time.monotonic() - began < SECONDS / 2
        assert sum_of_ones() == ranks - 2

    run(4, body, killed=[0, who])


def test_stopped_and_told_so():
    """The others go on. When the stopped one continues, it gets an error that it is out, and writes into no other's memory."""

    def body(rank, ranks):
        if rank == 0:
            child = os.getpid()
            # Another process lets it continue after some seconds.
            if os.fork() == 0:
                time.sleep(4)
                os.kill(child, signal.SIGCONT)
                os._exit(0)
            os.kill(child, signal.SIGSTOP)
            with pytest.raises(kolo.torch.Fenced, match="gone on without"):
                dist.group.WORLD.kolo_survivors()
            os.wait()
            return
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        with pytest.raises(dist.DistBackendError):
            for _ in range(100_000):
                sum_of_ones()
        go_on()
        assert sum_of_ones() == ranks - 1
        # Meanwhile the stopped process continues.
        for _ in range(120):
            assert sum_of_ones() == ranks - 1
            time.sleep(0.05)

    run(4, body)


def test_ddp_goes_on():
    """Training with DistributedDataParallel: rank 0 dies in a backward pass; all remaining ranks end with the same weights."""

    def body(rank, ranks):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step = 0
        while step < 20:
            batch = torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))
            optimizer.zero_grad()
            try:
                loss = ddp(batch).square().mean()
                if step == 7 and rank == 0:
                    model[0].weight.register_hook(lambda _: die())
                loss.backward()
            except RuntimeError:
                # Torch raises a RuntimeError for any error in a backward pass. Some ranks may have made this step and others not, so
                # all take the state of the new first rank.
                go_on()
                ddp = DistributedDataParallel(model)
                at = torch.tensor([step])
                dist.broadcast(at, 0)
                step = int(at)
                continue
            optimizer.step()
            step += 1
        assert dist.get_world_size() == ranks - 1
        weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        everyones = [torch.zeros_like(weights) for _ in range(ranks - 1)]
        dist.all_gather(everyones, weights)
        assert all(torch.equal(theirs, weights) for theirs in everyones)

    run(3, body, killed=[0])


def test_the_next_sum_comes_soon():
    """Prints the time from the end of a process until the next all-reduce has finished. The bound is loose, for busy machines."""

    def body(rank, ranks):
        times = []
        for left in range(ranks - 1, 1, -1):
            sum_of_ones()
            if dist.get_rank() == 0:
                die()
            with pytest.raises(dist.DistBackendError):
                for _ in range(1_000_000):
                    sum_of_ones()
            lost = time.monotonic()
            go_on()
            sum_of_ones()
            times.append(time.monotonic() - lost)
        print(f"ms: {[round(1000 * t, 1) for t in times]}")
        assert statistics.median(times) < 5

    for end in run(5, body, killed=[0, 1, 2]):
        print(end.text)


@pytest.mark.parametrize("seed", [*range(4), 40, 42])
def test_two_are_killed_at_any_moment(seed):
    """The second may die while the others agree, meet or join. No rank waits for the time-out."""
    chance = random.Random(seed)
    victims = chance.sample(range(5), 2)
    after = chance.uniform(0, 0.02), chance.uniform(0, 0.12)

    def body(rank, ranks):
        if rank in victims:
            threading.Timer(after[victims.index(rank)], die).start()
        done = 0
        began = time.monotonic()
        while done < 20:
            try:
                members = sum_of_ones()
                assert members == dist.get_world_size()
                done += members == ranks - 2
            except dist.DistBackendError:
                go_on()
        assert time.monotonic() - began < SECONDS * 0.9

    run(5, body, killed=victims)
