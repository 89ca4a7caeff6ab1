"""Finds the address, length and type of the memory of a user's object; makes no copy if the memory is contiguous.

This module handles all kinds of memory; ``quick.rs`` finds the memory of the usual calls by itself. The address comes from
``__array_interface__`` (NumPy), from ``__cuda_array_interface__`` or ``__dlpack__`` (other array libraries), or from the buffer
protocol.
"""

from __future__ import annotations

import sys

from . import _kolo
from .errors import Unsupported, Usage
from .numbers import AVG, BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, PREMUL_SUM, SUM, U8, U16, U32, U64

_NATIVE = "<" if sys.byteorder == "little" else ">"
_LETTERS = "abcdefghijklmnopqrstuvwxyzMV"
_LINEAR = frozenset((SUM, AVG, PREMUL_SUM))
_NO_OPS: frozenset = frozenset()

#: Maps the kind and bytes of an element to Kolo's type, the number of Kolo's elements in it, and the operators that are defined
#: for it (``None`` for all). Elements of other kinds are moved as bytes.
_TYPES: dict[str, tuple[int, int, frozenset | None]] = {
    "b1": (BOOL, 1, None),
    "i1": (I8, 1, None),
    "u1": (U8, 1, None),
    "i2": (I16, 1, None),
    "u2": (U16, 1, None),
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
SIZES = (1, 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 2, 2)

#: The names that NumPy and torch give to kinds that are not named after their bits.
_NAMES = {"b1": "bool", "bf2": "bfloat16", "f16": "longdouble", "c32": "clongdouble"}
_WORDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}

_FORMATS = {"?": "b", "e": "f", "f": "f", "d": "f", "g": "f", "c": "u", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u")}

#: DLPack's type codes.
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}
#: DLPack's numbers for CPU, CUDA, CUDA's pinned host memory, and CUDA's managed memory.
_DLPACK_DEVICES = (1, 2, 3, 13)
#: The devices whose memory is written in the order of CUDA streams.
_DLPACK_GPUS = (2, 13)
_DLPACK_READ_ONLY, _DLPACK_COPIED = 1, 2
#: CUDA's number for the default stream that waits for the others.
_LEGACY_STREAM = 1

#: Libraries whose arrays are immutable, although they do not say so when they expose the memory.
_IMMUTABLE = frozenset(("jax", "jaxlib", "pyarrow", "tensorflow"))


class Memory:
    """A contiguous piece of a user's memory."""

    __slots__ = ("address", "back", "count", "elements", "owner", "type", "units", "ops", "name")

    def __init__(self, address: int, elements: int, kind: str, owner: object) -> None:
        number, units, ops = _TYPES.get(kind, (U8, 0, frozenset()))
        if not units:
            # The number behind the letters is the size in bytes; dates have a unit behind that.
            units = int(kind.lstrip(_LETTERS).partition("[")[0] or 1)
        self.address = address
        #: The user's number of elements; ``count`` is Kolo's.
        self.elements = elements
        self.count = elements * units
        self.type = number
        self.units = units
        self.ops = ops
        self.owner = owner
        #: Two arrays, or ``None``: after Kolo has written the second, its contents are copied to the first.
        self.back: tuple | None = None
        self.name = _name(kind, units)

    def check_op(self, op: int) -> None:
        if self.ops is not None and op not in self.ops:
            raise Unsupported(
                f"this operator is not defined for elements of type '{self.name}'; they can only be moved, or summed if "
                "they are complex"
            )


def _name(kind: str, units: int) -> str:
    if kind in _NAMES:
        return _NAMES[kind]
    if kind[0] in "mM":
        return kind.replace("M8", "datetime64").replace("m8", "timedelta64")
    size = SIZES[_TYPES[kind][0]] if kind in _TYPES else 1
    word = _WORDS.get(kind[0])
    return kind if word is None else f"{word}{size * units * 8}"


#: Types that Kolo reduces natively, by the names that NumPy and torch give them.
TYPE_NAMES = {_name(kind, units): number for kind, (number, units, ops) in _TYPES.items() if ops is None}

NOTHING = Memory(0, 0, "u1", None)


def find(what: str, obj: object, writable: bool, comm: _kolo.Comm) -> Memory:
    """Returns the memory of ``obj``'s elements, or of a copy of them if it is a NumPy array that is not contiguous.

    Raises :class:`Usage` if Kolo cannot use them. For GPU memory, waits until the stream that the object names has written it.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.generic):
        # The interface of a NumPy scalar describes a copy of its value.
        if writable:
            refuse_scalar(what, obj)
        obj = numpy.asarray(obj)
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None:
        if interface.get("strides") is not None and numpy is not None and isinstance(obj, numpy.ndarray):
            return _staged(what, obj, writable, numpy)
        return _from_interface(what, obj, interface, writable)
    # This interface has the same form, with an address in GPU memory.
    lends = hasattr(obj, "__dlpack__")
    interface = _on_gpu(what, obj)
    # Before version 3, as torch has it, the interface names no stream; DLPack makes the current one wait.
    if interface is not None and not (lends and interface.get("version", 0) < 3):
        if writable:
            _refuse_immutable(what, obj)
        found = _from_interface(what, obj, interface, writable)
        _wait_for_stream(what, interface, found.address, comm)
        return found
    if lends:
        return _from_dlpack(what, obj, writable, comm)
    return _from_buffer(what, obj, writable)


def refuse_scalar(what: str, obj: object) -> None:
    """Refuses a scalar of NumPy in the place of a buffer that the call is to change."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.generic):
        raise Usage(
            f"{what} is a numpy.{type(obj).__name__}, a value that cannot be changed in place; pass numpy.asarray(x), which "
            "then holds the result and is returned"
        )


def is_native(dtype) -> bool:
    """Returns whether Kolo has the type of a NumPy array, so that the tags of calls tell it from other types."""
    _, _, ops = _TYPES.get(dtype.str[1:], (U8, 0, _NO_OPS))
    return ops is None and dtype.isnative


def _staged(what: str, obj, writable: bool, numpy) -> Memory:
    """Copies the array in the order of its indices, since ranks may store their arrays in different orders."""
    if writable and not obj.flags.writeable:
        raise Usage(f"{what} is read-only")
    whole = numpy.ascontiguousarray(obj)
    found = _from_interface(what, whole, whole.__array_interface__, writable)
    found.back = (obj, whole) if writable else None
    return found


def copy_back(backs) -> None:
    """Copies the results of a call to output arrays that are not contiguous."""
    for array, whole in backs:
        array[...] = whole


def _from_interface(what: str, obj: object, interface: dict, writable: bool) -> Memory:
    if getattr(getattr(obj, "dtype", None), "hasobject", False):
        raise _holds_objects(what)
    typestr = interface["typestr"]
    if interface.get("strides") is not None:
        raise Usage(f"{what} is not contiguous; pass a contiguous copy, such as numpy.ascontiguousarray(x)")
    order, kind = typestr[0], typestr[1:]
    if order not in (_NATIVE, "|", "="):
        raise Usage(f"{what} has elements in the other byte order ('{typestr}'); convert it first")
    if kind[0] == "V":
        # The type is not NumPy's own, but for example one of ml_dtypes.
        name = getattr(getattr(obj, "dtype", None), "name", "")
        kind = "bf2" if name == "bfloat16" else kind
    elif kind[0] in "OSU":
        raise Usage(f"{what} holds '{typestr}', which is neither numbers nor bytes")
    data = interface.get("data")
    # The interface may own the memory that it describes.
    owner: object = (obj, interface)
    if isinstance(data, tuple):
        address, read_only = data
        if writable and read_only:
            raise Usage(f"{what} is read-only")
    else:
        lent = _lent(what, obj if data is None else data, writable)
        address, owner = lent.address + interface.get("offset", 0), (owner, lent)
    elements = 1
    for extent in interface["shape"]:
        elements *= extent
    return Memory(address, elements, kind, owner)


def _holds_objects(what: str) -> Usage:
    return Usage(
        f"{what} holds Python objects, whose addresses mean nothing to other processes; use the calls for objects, such as "
        "broadcast_object"
    )


def _on_gpu(what: str, obj: object) -> dict | None:
    """The interface of an array on a GPU."""
    try:
        return getattr(obj, "__cuda_array_interface__", None)
    except RuntimeError as problem:
        raise Usage(f"{what} does not export its memory: {problem}") from problem


def _wait_for_stream(what: str, interface: dict, address: int, comm: _kolo.Comm) -> None:
    stream = interface.get("stream")
    if stream is None:
        return
    if stream == 0:
        raise Usage(
            f"{what} names stream 0 in __cuda_array_interface__, which could mean either default stream; use 1 or 2 to say "
            "which"
        )
    comm.synchronize(address, stream)


def _refuse_immutable(what: str, obj: object) -> None:
    for kind in type(obj).__mro__:
        if kind.__module__.partition(".")[0] in _IMMUTABLE:
            name = f"{kind.__module__.partition('.')[0]}'s {type(obj).__name__}"
            raise Usage(f"{what} is read-only: {name} is immutable; pass a copy that is not, such as numpy.array(x), or give out")


def _from_dlpack(what: str, obj, writable: bool, comm: _kolo.Comm) -> Memory:
    device, _ = obj.__dlpack_device__()
    if device not in _DLPACK_DEVICES:
        raise Usage(f"{what} is neither in CPU memory nor on an NVIDIA GPU; copy it there first")
    # Torch has such views, and their capsules do not say so.
    if (is_neg := getattr(obj, "is_neg", None)) is not None and is_neg():
        raise Usage(f"{what} is a view whose memory holds the negative of its values; pass x.resolve_neg()")
    capsule = _capsule(what, obj, device in _DLPACK_GPUS)
    address, shape, strides, code, bits, lanes, flags = _kolo.dlpack(capsule)
    if writable:
        if flags is None:
            _refuse_immutable(what, obj)
        elif flags & _DLPACK_READ_ONLY:
            raise Usage(f"{what} is read-only; give out, or pass a copy such as numpy.array(x)")
        elif flags & _DLPACK_COPIED:
            raise Usage(f"{what} exports only a copy of itself, so it cannot be written to; pass an array in plain memory")
    if device in _DLPACK_GPUS:
        # The producer has made the legacy stream wait for its own stream.
        comm.synchronize(address, _LEGACY_STREAM)
    elements = 0 if 0 in shape else 1
    for extent, stride in zip(reversed(shape), reversed(strides)) if elements else ():
        if stride != elements and extent != 1:
            raise Usage(f"{what} is not contiguous; make it contiguous first")
        elements *= extent
    if bits * lanes % 8:
        raise Usage(f"{what} has elements of {bits * lanes} bits, and Kolo moves whole bytes; pass an array of the bytes")
    # Elements of several lanes can only be moved.
    kind = f"{_DLPACK_KINDS.get(code, 'V') if lanes == 1 else 'V'}{bits * lanes // 8}"
    return Memory(address, elements, kind, capsule)


def _capsule(what: str, obj, on_gpu: bool):
    stream = {"stream": _LEGACY_STREAM} if on_gpu else {}
    try:
        try:
            return obj.__dlpack__(max_version=(1, 0), **stream)
        except TypeError:
            # The producer is older than versioned capsules.
            return obj.__dlpack__(**stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise Usage(f"{what} does not export its memory: {problem}") from problem


def _from_buffer(what: str, obj, writable: bool) -> Memory:
    try:
        view = memoryview(obj)
    except TypeError:
        if isinstance(obj, (int, float, complex)):
            raise Usage(f"{what} has type {type(obj).__name__}; pass numpy.array(x), which also receives the result") from None
        raise Usage(
            f"{what} has type {type(obj).__name__}, which has neither __array_interface__, nor __dlpack__, nor the buffer "
            "protocol"
        ) from None
    if not view.c_contiguous:
        raise Usage(f"{what} is not contiguous")
    # The names of fields stand between colons.
    if "O" in "".join(view.format.split(":")[::2]):
        raise _holds_objects(what)
    form = view.format.lstrip("@=" + _NATIVE)
    kind = f"{_FORMATS.get(form, 'V')}{view.itemsize}"
    return Memory(_lent(what, view, writable).address, view.nbytes // view.itemsize, kind, view)


def _lent(what: str, obj, writable: bool) -> _kolo.Held:
    try:
        if writable and memoryview(obj).readonly:
            raise Usage(f"{what} is read-only")
        return _kolo.Held(obj, writable)
    except (BufferError, TypeError, ValueError) as problem:
        if isinstance(problem, Usage):
            raise
        raise Usage(f"{what} does not export its memory: {problem}") from problem
