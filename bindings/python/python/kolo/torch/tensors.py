"""Types and memory of tensors.

Kolo works on contiguous memory of the host, and of GPUs whose driver it knows. It uses a tensor in such memory in place. Any other
tensor is staged: Kolo works on a contiguous copy, and the result is copied back when the operation is complete. For devices of
other kinds (``mps``, ``xpu``, those of extensions) the copy is in host memory, and the caller waits for it.
"""

from __future__ import annotations

import torch
from torch.distributed import ReduceOp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from ..numbers import (
    AVG,
    BF16,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    MAX,
    MIN,
    PREMUL_SUM,
    PROD,
    SUM,
    U8,
    U16,
    U32,
    U64,
)
from . import streams
from .errors import Unsupported, Usage

#: Types that Kolo reduces natively.
NATIVE: dict[torch.dtype, int] = {
    torch.bool: BOOL,
    torch.uint8: U8,
    torch.int8: I8,
    torch.uint16: U16,
    torch.int16: I16,
    torch.uint32: U32,
    torch.int32: I32,
    torch.uint64: U64,
    torch.int64: I64,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float32: F32,
    torch.float64: F64,
}

#: Types that are reduced in a wider type and rounded once, at the end.
_WIDER: dict[torch.dtype, torch.dtype] = {
    **{
        getattr(torch, name): torch.float32
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
        if hasattr(torch, name)
    },
}

#: Linear operators treat complex numbers as pairs of these types.
_PARTS: dict[torch.dtype, int] = {torch.complex64: F32, torch.complex128: F64}
_LINEAR = frozenset((SUM, AVG, PREMUL_SUM))

_OPS = {
    ReduceOp.SUM: SUM,
    ReduceOp.AVG: AVG,
    ReduceOp.PRODUCT: PROD,
    ReduceOp.MIN: MIN,
    ReduceOp.MAX: MAX,
    ReduceOp.BAND: BIT_AND,
    ReduceOp.BOR: BIT_OR,
    ReduceOp.BXOR: BIT_XOR,
    ReduceOp.PREMUL_SUM: PREMUL_SUM,
}
#: The same by the numbers of torch's enumeration, which are faster to look up.
_OPS_BY_NUMBER = tuple(number for _, number in sorted((int(op), number) for op, number in _OPS.items()))


#: Classes whose tensors have memory of their own; tensors of other classes may be wrappers around another tensor.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def operator(op) -> tuple[int, float]:
    """Returns Kolo's number of torch's operator, and its factor."""
    # Torch also accepts the bare kind, such as ReduceOp.SUM.
    kind = getattr(op, "op", op)
    number = _OPS_BY_NUMBER[int(kind)]
    if number != PREMUL_SUM:
        return number, 1.0
    return number, float(op.factor)


def check(tensor: torch.Tensor) -> None:
    """Refuses a tensor that Kolo cannot read."""
    if tensor.layout is not torch.strided:
        raise Usage(f"a tensor of layout {tensor.layout}: Kolo moves dense tensors, and all-reduces sparse COO ones")
    if tensor.is_meta:
        raise Usage("a tensor on device 'meta': it has a shape and no values")


def check_devices(tensors) -> None:
    """Refuses tensors of one operation that are on different devices."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Usage(f"the tensors of one operation are on different devices: {names}; move them to one")


def moved_as(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the type and number of elements for moving a tensor: the tensor's type if Kolo has it, else bytes."""
    number = NATIVE.get(tensor.dtype)
    if number is not None:
        return number, tensor.numel()
    part = _PARTS.get(tensor.dtype)
    if part is not None:
        return part, 2 * tensor.numel()
    return U8, tensor.numel() * tensor.element_size()


def reduced_as(tensor: torch.Tensor, op: int) -> tuple[int, int]:
    """Returns the type and number of elements for reducing a tensor that :func:`staged_to_reduce` has returned."""
    number = NATIVE.get(tensor.dtype)
    if number is not None:
        return number, tensor.numel()
    part = _PARTS.get(tensor.dtype)
    if part is not None and op in _LINEAR:
        return part, 2 * tensor.numel()
    raise Unsupported(f"this operator is not defined for {tensor.dtype}")


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if Kolo can use it in place, else a contiguous copy.

    The stream of a device may write the values later; the engine makes operations wait for that.
    """
    if type(tensor) not in _PLAIN:
        tensor = _unwrapped(tensor)
    if tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and not _is_lazy(tensor):
        return tensor
    check(tensor)
    whole = _resolved(_near(tensor)).contiguous()
    if whole.is_cpu or streams.cuda.takes(whole):
        return whole
    copy = streams.cuda.room(whole, whole.shape)
    copy.copy_(whole, non_blocking=True)
    return copy


def staged_to_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """As :func:`staged`, in the type in which the tensor is reduced."""
    wider = _WIDER.get(tensor.dtype)
    if wider is None:
        return staged(tensor)
    # Widened on its device, since a GPU may not have written the values yet.
    return staged(_near(tensor).to(wider))


def concatenated(tensors) -> torch.Tensor:
    """Returns the values of some tensors, one after another."""
    tensors = [_unwrapped(tensor) for tensor in tensors]
    for tensor in tensors:
        check(tensor)
    return torch.cat([_near(tensor).reshape(-1) for tensor in tensors])


def host_room(shape, dtype: torch.dtype) -> torch.Tensor:
    """Allocates host memory, also where the program has made another device torch's default."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if Kolo can write it in place, else new memory, to be used with :func:`copying_back`."""
    if type(tensor) not in _PLAIN:
        tensor = _unwrapped(tensor)
    if tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and not _is_lazy(tensor):
        return tensor
    check(tensor)
    if not _is_near(tensor) or tensor.is_cpu:
        return host_room(tensor.shape, tensor.dtype)
    if tensor.is_contiguous() and not _is_lazy(tensor) and streams.cuda.takes(tensor):
        return tensor
    return streams.cuda.room(tensor, tensor.shape)


def flat_room(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """Allocates memory for ``elements`` elements like those of ``tensor``."""
    if not _is_near(tensor) or tensor.is_cpu:
        return host_room(elements, tensor.dtype)
    return streams.cuda.room(tensor, (elements,))


def room_in(source: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Allocates memory for the values of ``tensor``, in the type of ``source`` and on its device."""
    if not _is_near(tensor) or tensor.is_cpu:
        return host_room(tensor.shape, source.dtype)
    return streams.cuda.room(source, tensor.shape)


def copying_back(tensor: torch.Tensor, room: torch.Tensor):
    """Returns a function to call when Kolo has written ``room``; ``None`` if that is the tensor itself."""
    if type(tensor) not in _PLAIN:
        tensor = _unwrapped(tensor)
    if room is tensor:
        return None
    expect_distinct(tensor)
    return lambda: copy_back(tensor, room)


def expect_distinct(tensor: torch.Tensor) -> None:
    """Refuses an output whose elements share memory. Torch would refuse the copy at the end, when other ranks have succeeded."""
    if tensor.numel() and any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride())):
        raise Usage(
            f"an output of {tuple(tensor.shape)} elements that share memory, as those of an expanded tensor do: they "
            "cannot hold a result each; pass a clone() of it"
        )


def copy_back(tensor: torch.Tensor, room: torch.Tensor) -> None:
    """Copies ``room`` to the tensor on the current stream; for a tensor on a device, the host does not wait.

    The tensor may be a parameter, which autograd would protect from the copy, or one made in inference mode, which may be written in
    that mode only.
    """
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        _copy_back(tensor, room)


def _copy_back(tensor: torch.Tensor, room: torch.Tensor) -> None:
    if not _is_near(tensor):
        # The type is converted on the host, since not every device can do that during a copy.
        tensor.copy_(room.view(tensor.shape).to(tensor.dtype))
        return
    streams.cuda.used_here(room)
    tensor.copy_(room.view(tensor.shape), non_blocking=True)


def adjoining(tensors) -> bool:
    """Returns whether tensors of one length lie one after another in host memory, as the parts of a larger tensor do."""
    tensors = [_unwrapped(tensor) for tensor in tensors]
    first = tensors[0]
    if not first.is_cpu:
        return False
    at, step = first.data_ptr(), first.numel() * first.element_size()
    for tensor in tensors:
        if tensor.data_ptr() != at or not tensor.is_contiguous() or _is_lazy(tensor):
            return False
        at += step
    # Adjoining memory may belong to different owners by chance; parts of one tensor share its storage.
    storage = first.untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() == storage for tensor in tensors)


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor that has the memory: the result of a functional collective stands for another tensor.

    Other wrappers, such as ``DTensor``, are refused, since only they know how their values are stored.
    """
    if type(tensor) in _PLAIN:
        return tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.trigger_wait()
    is_near = tensor.is_cpu or tensor.is_cuda
    if is_near and tensor.layout is torch.strided and tensor.numel() and not tensor.data_ptr():
        kind = type(tensor).__name__
        raise Usage(f"a {kind}, which has no memory of its own; pass the tensor that it wraps (of a DTensor: to_local())")
    return tensor


def _is_near(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is in memory of a kind that Kolo works on."""
    return tensor.device.type in ("cpu", "cuda")


def _near(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if it is near, else a copy of it in host memory."""
    return tensor if _is_near(tensor) else tensor.cpu()


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Returns whether the memory holds the conjugate or the negative of the values."""
    return tensor.is_conj() or tensor.is_neg()


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg()
