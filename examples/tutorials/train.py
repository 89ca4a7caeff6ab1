"""Data-parallel training as a job runs it: metrics by all-reduce, a barrier, a checkpoint by rank 0, and an orderly end.

    mpirun -n 2 python train.py --epochs 5
    torchrun --standalone --nproc-per-node 2 train.py --checkpoint model.pt

Under mpirun, mpiexec and srun `import kolo.torch` tells LOCAL_RANK as torchrun does; nothing else is to be set.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kolo.torch  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
from training import data, models  # noqa: E402


def total(*values: float) -> list[float]:
    """Returns the sums over all ranks."""
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


@torch.no_grad()
def accuracy(model: nn.Module, images: data.Images) -> float:
    mine = torch.arange(dist.get_rank(), len(images), dist.get_world_size())
    inputs, labels = images.batch(mine)
    right, seen = total((model(inputs).argmax(1) == labels).sum().item(), len(mine))
    return right / seen


def train(arguments: argparse.Namespace) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    dataset = data.load(arguments.data, arguments.fraction)
    model = DistributedDataParallel(models.build("mlp", seed=0).to(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    share = arguments.batch // ranks
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(epoch))[rank::ranks]
        loss_sum = steps = 0
        for at in range(0, len(order) - share + 1, share):
            inputs, labels = dataset.train.batch(order[at : at + share])
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimiser.step()
            loss_sum, steps = loss_sum + loss.item(), steps + 1
        loss_sum, steps = total(loss_sum, steps)
        found = accuracy(model, dataset.test)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss_sum / steps:.4f}, accuracy {100 * found:.1f} %", flush=True)
    dist.barrier()
    if rank == 0 and arguments.checkpoint is not None:
        torch.save({"model": model.module.state_dict(), "epochs": arguments.epochs}, arguments.checkpoint)
        print(f"saved {arguments.checkpoint}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="four idx files, such as MNIST's")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--checkpoint", type=Path)
    torch.set_num_threads(1)
    dist.init_process_group("kolo")
    train(parser.parse_args())
    dist.destroy_process_group()
