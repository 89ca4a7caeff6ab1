"""Ranks as Ray actors: the first actor makes an id, which Ray passes to the others.

    python kolo_on_ray.py --ranks 4
"""

import argparse

import ray


@ray.remote(num_cpus=1)
class Rank:
    """One process of the job."""

    def make_id(self) -> bytes:
        """Called on rank 0 only: the ranks meet on the host that makes the id."""
        import kolo

        return kolo.get_unique_id()

    def work(self, unique_id: bytes, rank: int, ranks: int) -> float:
        import numpy as np

        import kolo

        with kolo.init(unique_id=unique_id, rank=rank, world_size=ranks, timeout=60, join_timeout=60) as comm:
            return float(comm.all_reduce(np.full(1000, rank + 1.0))[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    ray.init()
    actors = [Rank.remote() for _ in range(ranks)]
    unique_id = ray.get(actors[0].make_id.remote())
    sums = ray.get([actor.work.remote(unique_id, rank, ranks) for rank, actor in enumerate(actors)])
    assert sums == [ranks * (ranks + 1) / 2] * ranks, sums
    print(f"{ranks} ranks on Ray: {sums[0]:g}", flush=True)
