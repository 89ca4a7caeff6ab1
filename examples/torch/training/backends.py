"""The communication backends, and their requirements."""

from __future__ import annotations

import shutil

BACKENDS = ("gloo", "mpi", "kolo")
"""`mpi` is Open MPI or MPICH through mpi4py; the others are backends of torch.distributed."""


def why_not(backend: str) -> str | None:
    """Returns what this machine lacks for `backend`; None if nothing."""
    if backend == "kolo":
        try:
            import kolo.torch  # noqa: F401  (registers the backend)
        except ImportError as error:
            return f"backend kolo needs the Python package kolo, see bindings/python ({error})"
    if backend == "mpi":
        try:
            import mpi4py  # noqa: F401
        except ImportError as error:
            return f"backend mpi needs the Python package mpi4py ({error})"
        if shutil.which("mpirun") is None:
            return "backend mpi needs mpirun"
    return None


def require(backend: str) -> None:
    """Registers `backend` with torch.distributed, or ends the program with a line that says what is missing."""
    reason = why_not(backend)
    if reason is not None:
        raise SystemExit(reason)
