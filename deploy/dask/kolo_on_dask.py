"""Ranks as tasks of a Dask cluster, one per worker: the first worker makes an id, which Dask passes to the others.

    python kolo_on_dask.py --ranks 4
    python kolo_on_dask.py --scheduler tcp://head:8786     all workers of a running cluster
"""

import argparse

from dask.distributed import Client, LocalCluster


def make_id() -> bytes:
    import kolo

    return kolo.get_unique_id()


def work(unique_id: bytes, rank: int, ranks: int) -> float:
    import numpy as np

    import kolo

    with kolo.init(unique_id=unique_id, rank=rank, world_size=ranks, timeout=60, join_timeout=60) as comm:
        return float(comm.all_reduce(np.full(1000, rank + 1.0))[0])


def run(client: Client) -> None:
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    ranks = len(workers)
    # Making the id reserves a port in the process that makes it, so the worker of rank 0 both makes and uses it.
    unique_id = client.submit(make_id, workers=[workers[0]], pure=False).result()
    # Every rank waits for the others: so each has a worker to itself, and Dask must not run any of them again.
    tasks = [
        client.submit(work, unique_id, rank, ranks, workers=[worker], allow_other_workers=False, retries=0, pure=False)
        for rank, worker in enumerate(workers)
    ]
    sums = client.gather(tasks)
    assert sums == [ranks * (ranks + 1) / 2] * ranks, sums
    print(f"{ranks} ranks on Dask: {sums[0]:g}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--scheduler")
    arguments = parser.parse_args()
    if arguments.scheduler is not None:
        with Client(arguments.scheduler) as client:
            run(client)
    else:
        # Each worker is a process with one thread, so that no two ranks share a process.
        with LocalCluster(n_workers=arguments.ranks, threads_per_worker=1, dashboard_address=None) as cluster:
            with Client(cluster) as client:
                run(client)
