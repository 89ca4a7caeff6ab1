"""From what users pass to address, length and type, without a copy.

The limited API that one wheel for all Pythons is built on has no buffer protocol before 3.11. So the address comes from
``__array_interface__`` (NumPy), ``__cuda_array_interface__`` or ``__dlpack__`` (everybody else with arrays), or from
``ctypes`` (plain buffers).
"""

from __future__ import annotations

import sys

from . import _kolo
from .errors import Unsupported, Usage
from .numbers import BF16, BOOL, F16, F32, F64, I8, I32, I64, SUM, AVG, PREMUL_SUM, U8, U32, U64

_NATIVE = "<" if sys.byteorder == "little" else ">"
_LETTERS = "abcdefghijklmnopqrstuvwxyzV"
_LINEAR = frozenset((SUM, AVG, PREMUL_SUM))
_NO_OPS: frozenset = frozenset()

#: Kind and bytes of an element to Kolo's type, how many of those an element is, and the operators that mean something
#: (``None`` for all; the rest is moved as bytes).
_TYPES: dict[str, tuple[int, int, frozenset | None]] = {
    "b1": (BOOL, 1, None),
    "i1": (I8, 1, None),
    "u1": (U8, 1, None),
    "i4": (I32, 1, None),
    "u4": (U32, 1, None),
    "i8": (I64, 1, None),
    "u8": (U64, 1, None),
    "f2": (F16, 1, None),
    "f4": (F32, 1, None),
    "f8": (F64, 1, None),
    "bf2": (BF16, 1, None),
    "c8": (F32, 2, _LINEAR),
    "c16": (F64, 2, _LINEAR),
}

#: Bytes of an element of each of Kolo's types.
SIZES = (1, 1, 1, 4, 4, 8, 8, 2, 2, 4, 8)

_FORMATS = {"?": "b", "e": "f", "f": "f", "d": "f", "c": "u", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u")}

#: DLPack's type codes.
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}
#: The processor, a GPU, pinned memory of either, and managed memory.
_DLPACK_DEVICES = (1, 2, 3, 13)


class Memory:
    """A contiguous piece of a user's memory."""

    __slots__ = ("address", "count", "elements", "owner", "type", "units", "ops", "name")

    def __init__(self, address: int, elements: int, kind: str, owner: object) -> None:
        number, units, ops = _TYPES.get(kind, (U8, 0, frozenset()))
        if not units:
            digits = kind.lstrip("abcdefghijklmnopqrstuvwxyzV")
            units = int(digits or 1)
        self.address = address
        #: Elements as the user counts them, and as Kolo does.
        self.elements = elements
        self.count = elements * units
        self.type = number
        self.units = units
        self.ops = ops
        self.owner = owner
        self.name = kind

    def check_op(self, op: int) -> None:
        if self.ops is not None and op not in self.ops:
            raise Unsupported(
                f"this operator is not defined for elements of type '{self.name}'; they can be moved, and complex ones "
                "summed"
            )


NOTHING = Memory(0, 0, "u1", None)


def find(what: str, obj: object, writable: bool) -> Memory:
    """Where ``obj`` keeps its elements. Raises :class:`Usage` if Kolo cannot use them in place."""
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None:
        return _from_interface(what, obj, interface, writable)
    # The same with an address on a GPU.
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(what, obj, interface, writable)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(what, obj)
    return _from_buffer(what, obj, writable)


def _from_interface(what: str, obj: object, interface: dict, writable: bool) -> Memory:
    typestr = interface["typestr"]
    if interface.get("strides") is not None:
        raise Usage(f"{what} is not contiguous; pass numpy.ascontiguousarray of it, or the like")
    order, kind = typestr[0], typestr[1:]
    if order not in (_NATIVE, "|", "="):
        raise Usage(f"{what} has elements in the other byte order ('{typestr}'); convert it first")
    if kind[0] == "V":
        # Types that NumPy does not know itself, such as those of ml_dtypes.
        name = getattr(getattr(obj, "dtype", None), "name", "")
        kind = "bf2" if name == "bfloat16" else kind
    elif kind[0] in "OSU":
        raise Usage(f"{what} holds '{typestr}', which is neither numbers nor bytes")
    address, read_only = interface["data"]
    if writable and read_only:
        raise Usage(f"{what} is read-only")
    elements = 1
    for extent in interface["shape"]:
        elements *= extent
    return Memory(address, elements, kind, obj)


def _from_dlpack(what: str, obj) -> Memory:
    device, _ = obj.__dlpack_device__()
    if device not in _DLPACK_DEVICES:
        raise Usage(f"{what} is neither in the memory of the processor nor in that of an NVIDIA GPU; copy it there first")
    capsule = obj.__dlpack__()
    address, shape, strides, code, bits, lanes = _kolo.dlpack(capsule)
    elements = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if stride != elements and extent != 1:
            raise Usage(f"{what} is not contiguous; make it so first")
        elements *= extent
    kind = f"{_DLPACK_KINDS.get(code, 'V')}{max(bits // 8, 1) * lanes}"
    return Memory(address, elements, kind, capsule)


def _from_buffer(what: str, obj, writable: bool) -> Memory:
    try:
        view = memoryview(obj)
    except TypeError:
        raise Usage(
            f"{what} is a {type(obj).__name__}, which has neither __array_interface__, nor __dlpack__, nor the buffer "
            "protocol"
        ) from None
    if not view.c_contiguous:
        raise Usage(f"{what} is not contiguous")
    form = view.format.lstrip("@=" + _NATIVE)
    kind = f"{_FORMATS.get(form, 'V')}{view.itemsize}"
    if view.readonly:
        if writable:
            raise Usage(f"{what} is read-only")
        # ctypes finds no address in read-only memory, so this one case is a copy.
        view = memoryview(bytearray(view))
    if view.nbytes == 0:
        return Memory(0, 0, kind, view)
    import ctypes

    array = (ctypes.c_char * view.nbytes).from_buffer(view)
    return Memory(ctypes.addressof(array), view.nbytes // view.itemsize, kind, array)
