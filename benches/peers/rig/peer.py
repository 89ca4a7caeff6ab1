"""Description of a library that takes part, and of how its program is started."""
import os
from dataclasses import dataclass, field
from typing import Callable

PROCESSORS = len(os.sched_getaffinity(0))


def oversubscribed(ranks):
    return ranks > PROCESSORS


@dataclass
class Launch:
    """A command line without the program's options, additions to the environment, and files to remove afterwards."""

    command: list
    environment: dict = field(default_factory=dict)
    leftovers: list = field(default_factory=list)


@dataclass
class Library:
    """A library that is installed and whose program has been built."""

    name: str
    title: str
    launch: Callable  # (ranks, transport) -> Launch
    transports: tuple = ("shm", "tcp")
    # Whether it waits without yielding: with more ranks than processors, an operation then takes as long as a
    # time slice.
    never_yields: bool = False
