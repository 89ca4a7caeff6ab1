"""A library that lends arrays by DLPack."""

import ctypes

import numpy as np


class Tensor(ctypes.Structure):
    """``DLTensor``, the only part of an unversioned capsule that a reader looks at."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Lender:
    """Lends a vector of float64 by DLPack, in the way of older and of newer libraries. ``kind`` is the type as the capsule has it:
    code, bits and lanes."""

    def __init__(self, values, *, flags=None, major=1, problem=None, device=1, address=None, kind=(2, 64, 1)):
        self.values = np.asarray(values, np.float64)
        self.flags, self.major, self.problem, self.device = flags, major, problem, device
        self.shape = (ctypes.c_int64 * 1)(len(self.values))
        address = self.values.ctypes.data if address is None else address
        self.tensor = Tensor(address, device, 0, 1, *kind, self.shape, None, 0)
        self.versioned = Versioned(major, 3, None, None, flags or 0, self.tensor)
        self.streams = []

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, *, stream=None, **newer):
        self.streams.append(stream)
        if self.problem is not None:
            raise self.problem
        if newer and self.flags is None:
            raise TypeError("unexpected keyword argument")
        if newer:
            assert newer["max_version"] >= (1, 0)
        versioned = bool(newer)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        found = self.versioned if versioned else self.tensor
        self.name = b"dltensor_versioned" if versioned else b"dltensor"
        return new(ctypes.addressof(found), self.name, None)
