"""A program for arrays, started by any launcher that Kolo knows."""

import numpy as np

import kolo

with kolo.init() as comm:
    x = np.full(1000, comm.rank + 1.0)
    comm.all_reduce(x)
    assert np.all(x == comm.world_size * (comm.world_size + 1) / 2)
    print(f"rank {comm.rank} of {comm.world_size}: {x[0]:g}; {comm.summary()}", flush=True)
