"""A device of torch that no maker sells: a PrivateUse1 one whose memory is a tensor of the host that nobody else sees.

It has what tensors need to be made, copied to and from the host, and viewed, and nothing to compute with. Its tensors are
contiguous.
"""

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"


class Elsewhere(torch.Tensor):
    """A tensor on the device."""

    # What is computed from it need not be one.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        made = torch._C._acc.create_empty_tensor(list(held.shape), held.dtype)
        made.__class__ = Elsewhere
        return made

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def _copy_from(source, target, non_blocking=False):
    """In either direction, or within the device."""
    values = source.held if isinstance(source, Elsewhere) else source
    (target.held if isinstance(target, Elsewhere) else target).copy_(values)
    return target


def install() -> None:
    """Makes the device known to this process. Once."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")
    for name, body in {
        "empty.memory_format": lambda size, dtype=None, **_: Elsewhere(torch.empty(size, dtype=dtype)),
        "empty_strided": lambda size, _stride, dtype=None, **_: Elsewhere(torch.empty(size, dtype=dtype)),
        "_copy_from": _copy_from,
        "view": lambda tensor, size: Elsewhere(tensor.held.view(size)),
        "detach": lambda tensor: Elsewhere(tensor.held),
    }.items():
        library.impl(name, body, "PrivateUse1")
    install.library = library  # whose end would take the bodies away
