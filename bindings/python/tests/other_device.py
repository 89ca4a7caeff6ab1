"""A made-up device for torch: a PrivateUse1 device whose memory is a hidden tensor on the host.

Its tensors can be made, copied to and from the host, and viewed, but nothing can be computed with them. They are contiguous.
"""

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"

#: Copies to the host that the caller does not wait for, to be made by :func:`finish_copies`; ``None`` if all are made at once.
pending: list | None = None


class Elsewhere(torch.Tensor):
    """A tensor on the device."""

    # Results of operations on it need not be of this class.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        made = torch._C._acc.create_empty_tensor(list(held.shape), held.dtype)
        made.__class__ = Elsewhere
        return made

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def _copy_from(source, target, non_blocking=False):
    """Copies to the device, from it, or within it."""
    values = source.held if isinstance(source, Elsewhere) else source
    if non_blocking and pending is not None and not isinstance(target, Elsewhere):
        pending.append((values.clone(), target))
        return target
    (target.held if isinstance(target, Elsewhere) else target).copy_(values)
    return target


def finish_copies() -> None:
    """Does what a device does when it reaches the copies in its queue."""
    while pending:
        values, target = pending.pop(0)
        target.copy_(values)


def install() -> None:
    """Makes the device known to this process. To be called once."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")
    for name, body in {
        "empty.memory_format": lambda size, dtype=None, **_: Elsewhere(torch.empty(size, dtype=dtype)),
        "empty_strided": lambda size, _stride, dtype=None, **_: Elsewhere(torch.empty(size, dtype=dtype)),
        "_copy_from": _copy_from,
        "view": lambda tensor, size: Elsewhere(tensor.held.view(size)),
        "cat": lambda tensors, dim=0: Elsewhere(torch.cat([tensor.held for tensor in tensors], dim)),
        "detach": lambda tensor: Elsewhere(tensor.held),
    }.items():
        library.impl(name, body, "PrivateUse1")
    install.library = library  # kept alive: with it, the functions would go
