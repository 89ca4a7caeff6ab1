"""The ways to use Kolo with Accelerate and Lightning that the documentation gives, where these are installed."""

import textwrap

import pytest
from harness import programs, python

PREAMBLE = """
import os
import torch, torch.distributed as dist
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
ACCELERATE = """
from accelerate import Accelerator
dist.init_process_group("kolo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=ranks)
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
for step in range(3):
    optimizer.zero_grad()
    accelerator.backward(net(torch.full((2, 4), float(rank + step))).square().sum())
    optimizer.step()
assert accelerator.num_processes == ranks and dist.get_backend() == "kolo"
weights = accelerator.gather(net.module.weight.detach().clone())
assert torch.equal(weights[0], weights[1])
accelerator.wait_for_everyone()
print("trained on", dist.get_backend())
dist.destroy_process_group()
"""
LIGHTNING = """
import pytorch_lightning as lightning
from pytorch_lightning.strategies import DDPStrategy

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=2)
options = dict(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
strategy = DDPStrategy(process_group_backend="kolo")
trainer = lightning.Trainer(strategy=strategy, accelerator="cpu", devices=ranks, **options)
trainer.fit(Net(), data)
print("trained on", dist.get_backend())
"""


@pytest.mark.parametrize(
    ("module", "body"), [pytest.param("accelerate", ACCELERATE), pytest.param("pytorch_lightning", LIGHTNING)]
)
def test_training(tmp_path, module, body):
    pytest.importorskip(module, exc_type=ImportError)
    from launchers import free_port

    program = tmp_path / "program.py"
    program.write_text(PREAMBLE + textwrap.dedent(body))
    port = str(free_port())
    environments = [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": "none",
            "MEET": str(tmp_path / "meet"),
        }
        for rank in range(2)
    ]
    for end in programs([python(program)] * 2, environments, limit=120):
        assert "trained on kolo" in end.text, end
