"""The ten phases of a data-parallel MPI program, in mpi4py: on Kolo without a change.

    MPI4PY_LIBMPI=.../libmpi.so.12 kolo run -n 4 -- python mpi4py_flow.py

`cargo build -p kolo-mpi` makes the library as target/debug/libmpi.so: see docs/mpi.md.
"""

import numpy as np
from mpi4py import MPI

SAMPLES, FEATURES, EPOCHS, RATE = 512, 8, 20, 0.1


def batch(rank: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's samples of a linear problem that all ranks share."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    return inputs[rank::ranks], (inputs @ np.arange(1.0, FEATURES + 1))[rank::ranks]


comm = MPI.COMM_WORLD  # 1. MPI_Init
rank, ranks = comm.Get_rank(), comm.Get_size()  # 2. rank and size
settings = comm.bcast({"epochs": EPOCHS, "rate": RATE} if rank == 0 else None)  # 3. settings of rank 0
inputs, wanted = batch(rank, ranks)  # 4. a share of the data
weights = np.zeros(FEATURES) if rank == 0 else np.empty(FEATURES)
comm.Bcast(weights)  # 5. the same weights
for _ in range(settings["epochs"]):
    error = inputs @ weights - wanted
    gradient = 2 * inputs.T @ error  # 6. this rank's gradient
    comm.Allreduce(MPI.IN_PLACE, gradient)  # 7. the sum over all ranks
    weights -= settings["rate"] * gradient / SAMPLES  # 8. the same step everywhere
    comm.Barrier()  # 9.
losses = comm.gather(float((error**2).mean()))  # 10. metrics to rank 0
if rank == 0:
    print(f"{MPI.Get_library_version().splitlines()[0]}: losses of {ranks} ranks {[round(loss, 4) for loss in losses]}", flush=True)
    assert np.abs(weights - np.arange(1.0, FEATURES + 1)).max() < 0.5
