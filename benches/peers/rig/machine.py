"""Facts about the machine that matter to the results."""
import os
import platform
import re
import time

from .peer import PROCESSORS


def read(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def loopback_bytes():
    """Returns the bytes sent over the loopback interface so far."""
    return int(read("/sys/class/net/lo/statistics/tx_bytes") or 0)


def describe():
    model = re.search(r"model name\s*:\s*(.*)", read("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": model[1] if model else platform.machine(),
        "processors": PROCESSORS,
        "memory_gib": round(int(memory[1]) / (1 << 20)) if memory else None,
        "kernel": ".".join(platform.release().split(".")[:2]),
        "tcp_congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "virtual": "hypervisor" in read("/proc/cpuinfo"),
        "load_before": round(os.getloadavg()[0], 1),
    }
