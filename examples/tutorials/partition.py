"""A dataset cut into one part per rank, with gradients averaged by hand.

    torchrun --standalone --nproc-per-node 2 partition.py
"""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import kolo.torch  # noqa: F401


class DataPartitioner:
    """Cuts a dataset into parts of the given sizes; ranks with the same seed get the same parts."""

    def __init__(self, data: Dataset, sizes: list[float], seed: int = 1234) -> None:
        indices = list(range(len(data)))
        random.Random(seed).shuffle(indices)
        self.data, self.parts = data, []
        for size in sizes:
            count = int(size * len(data))
            self.parts.append(indices[:count])
            indices = indices[count:]

    def use(self, part: int) -> Subset:
        return Subset(self.data, self.parts[part])


def average_gradients(model: nn.Module) -> None:
    """Averages every gradient over all ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(256, 4, generator=generator)
data = TensorDataset(inputs, inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
partitioner = DataPartitioner(data, [1.0 / ranks] * ranks)
own = set(partitioner.parts[rank])
everybody = [None] * ranks
dist.all_gather_object(everybody, own)
assert len(set().union(*everybody)) == sum(map(len, everybody)), "no sample is in two parts"

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(10):
    for batch, wanted in DataLoader(partitioner.use(rank), batch_size=128 // ranks):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(batch), wanted)
        loss.backward()
        average_gradients(model)
        optimiser.step()
weights = [torch.zeros_like(model.weight) for _ in range(ranks)]
dist.all_gather(weights, model.weight.detach())
assert all(torch.equal(one, weights[0]) for one in weights), "all ranks have the same bits"
print(f"rank {rank} of {ranks}: loss {loss.item():.3f}, the same weights on all ranks", flush=True)
dist.destroy_process_group()
