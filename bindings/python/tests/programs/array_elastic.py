"""Runs steps under a launcher that restarts ranks: one rank kills itself; a newcomer takes its place and gets the state."""

import os
import signal
import sys

import numpy as np

import kolo

victim, full = int(sys.argv[1]), int(sys.argv[2])
comm = kolo.init()
# The group that a newcomer joins has changed already.
is_newcomer = comm.epoch > 0
first = comm.rank
came = []
group = kolo.Survivors(comm, on_change=lambda change: came.extend(change.came))
state = kolo.State(comm)
weights = np.full(1000, -1.0 if is_newcomer else 0.0)
after = 0
while after < 10:
    group.admit()

    def step(comm):
        state.share(comm, {"weights": weights})
        return comm.all_reduce(np.ones(1))

    ranks = group.run(step)[0]
    weights += 1
    state.advance()
    if not is_newcomer and first == victim and state.version == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    # Counts the steps with all ranks after the death.
    after += bool(came) and ranks == full
assert np.all(weights == state.version), (weights, state.version)
print(f"rank {group.comm.rank} of {group.comm.world_size}, slots {group.comm.slots}, newcomer {is_newcomer}", flush=True)
group.close()
