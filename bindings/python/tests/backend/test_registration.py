"""How torch learns of the backend."""

import subprocess
import sys

import torch.distributed as dist

import kolo.torch


def test_registering_again_does_nothing():
    before = dist.Backend._plugins["KOLO"]
    kolo.torch.register()
    assert dist.Backend._plugins["KOLO"] is before
    assert dist.is_backend_available("kolo")


def test_importing_takes_no_default_away():
    program = (
        "import torch.distributed as dist; before = dict(dist.Backend.default_device_backend_map);"
        "import kolo.torch; assert dist.Backend.default_device_backend_map == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
