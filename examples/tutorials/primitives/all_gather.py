"""All-gather: the tensors of all ranks, on every rank; as a list, and in one tensor.

    mpiexec -n 4 python all_gather.py
"""

import torch
import torch.distributed as dist

import kolo.torch  # noqa: F401

dist.init_process_group("kolo")
rank, ranks = dist.get_rank(), dist.get_world_size()

mine = torch.full((2,), 10.0 * rank)
everybody = [torch.zeros(2) for _ in range(ranks)]
dist.all_gather(everybody, mine)
assert [x.tolist() for x in everybody] == [[10 * r] * 2 for r in range(ranks)]

whole = torch.zeros(2 * ranks)
dist.all_gather_into_tensor(whole, mine)
assert torch.equal(whole, torch.cat(everybody))

print(f"rank {rank} of {ranks}: ok", flush=True)
dist.destroy_process_group()
