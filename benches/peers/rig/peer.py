"""What is known about a library that takes part: how a program over it is started."""
import os
from dataclasses import dataclass, field
from typing import Callable

PROCESSORS = len(os.sched_getaffinity(0))


def oversubscribed(ranks):
    return ranks > PROCESSORS


@dataclass
class Launch:
    """A command line without the options of the program, what it adds to the environment, and files to remove."""

    command: list
    environment: dict = field(default_factory=dict)
    leftovers: list = field(default_factory=list)


@dataclass
class Library:
    """A library that is there and whose program has been built."""

    name: str
    title: str
    launch: Callable  # (ranks, transport) -> Launch
    transports: tuple = ("shm", "tcp")
    # Waits without yielding: with more ranks than processors an operation takes as long as a time slice.
    never_yields: bool = False
