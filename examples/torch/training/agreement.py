"""Checks that all ranks have the same bits."""

from __future__ import annotations

import torch
import torch.distributed as dist


def same_weights_everywhere(weights: torch.Tensor) -> bool:
    """Compares this rank's weights with every other's, bit by bit. All ranks get the same answer."""
    mine = weights.view(torch.int32)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(mine, theirs) for theirs in everyone)
