"""Gloo, through torch.distributed."""
import subprocess
import sys

from . import places
from .peer import Launch, Library

PROBE = "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"


def find(peers_dir):
    """Returns Gloo if some Python on this machine can import torch, or the reason why not."""
    problem = "no Python here can import torch"
    for python in [sys.executable, *sorted(str(path) for path in peers_dir.glob("*/bin/python"))]:
        try:
            told = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        if told.returncode == 0:
            title = f"Gloo (torch {told.stdout.strip()})"
            return [Library("gloo", title, launcher(python), transports=("tcp",))], {}
        if "No module named 'torch'" not in told.stderr:
            problem = (told.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]
    return [], {"Gloo": problem}


def launcher(python):
    program = str(places.HERE / "gloo_bench.py")
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return lambda ranks, _: Launch([python, program, "--ranks", str(ranks)], environment)
