"""DistributedDataParallel: gradients are all-reduced in buckets while the backward pass goes on.

    torchrun --standalone --nproc-per-node 2 ddp.py --backend kolo --bucket-cap-mb 1
    kolo run -n 2 -- python ddp.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from training import data, models
from training.agreement import same_weights_everywhere
from training.options import parse
from training.session import joined


def train(images: data.Images, model_name: str, bucket_cap_mb: float, epochs: int, batch: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, labels = images.batch(slice(None))
    dataset = TensorDataset(inputs, labels)
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, batch_size=batch // world_size, sampler=sampler, drop_last=True)

    model = DistributedDataParallel(models.build(model_name, seed=rank), bucket_cap_mb=bucket_cap_mb)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        losses = []
        for inputs, labels in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        if rank == 0:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, {seconds:.2f} s", flush=True)
    same = same_weights_everywhere(models.flat_weights(model))
    if rank == 0:
        print(f"weights are the same bits on all {world_size} ranks: {'yes' if same else 'NO'}", flush=True)


if __name__ == "__main__":
    options = parse(
        __doc__,
        ("--model", {"choices": sorted(models.MODELS), "default": "mlp"}),
        ("--bucket-cap-mb", {"type": float, "default": 25.0, "help": "megabytes per bucket; default: 25"}),
    )
    with joined(options.backend):
        train(
            data.load(options.data, options.fraction).train,
            options.model,
            options.bucket_cap_mb,
            options.epochs,
            options.batch,
        )
