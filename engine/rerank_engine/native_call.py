"""Machine code as a function of the interpreter: what both sides agree on, and how the function object is made."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rerank_engine.records import Record

ENTRY, PYTHON_CALL = "rerank_entry", "rerank_python_call"
"""Functions of an image: the model over raw addresses, and the same for the interpreter."""

NOT_TAKEN = -1
"""What the function returns when the inputs are not plain arrays of the declared dtypes and shapes."""

HEADER_BYTES = 16
"""``PyObject_HEAD`` of CPython on 64 bits: reference count and type."""

ARRAY_FIELDS = {"data": 0, "nd": 8, "dimensions": 16, "descr": 40, "flags": 48}
"""Bytes from the end of the header to the fields of a NumPy array."""

REQUIRED_FLAGS = 0x0101
"""``NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED``."""

FUNCTIONS = (
    "PyDict_Size",
    "PyDict_GetItemWithError",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyLong_FromLong",
)
"""Functions of CPython's stable interface that the code calls."""

_METH_FASTCALL = 0x0080


class Layout(Record):
    """Places in the context, in words of eight bytes.

    Attributes
    ----------
    inputs
        How many inputs the model has.
    names
        How many named dimensions.
    """

    inputs: int
    names: int

    weights = 0
    arena = 1
    outputs = 2
    array_type = 3
    functions = 4

    def name(self, index: int) -> int:
        """Name of an input, a str object."""
        return self.functions + len(FUNCTIONS) + 3 * index

    def descriptor(self, index: int) -> int:
        """Its dtype object."""
        return self.name(index) + 1

    def buffer(self, index: int) -> int:
        """Where it is copied to when it may not be read past its end."""
        return self.name(index) + 2

    @property
    def limits(self) -> int:
        """Largest sizes of the named dimensions for which there is room."""
        return self.name(self.inputs)

    @property
    def words(self) -> int:
        """Size of the context."""
        return self.limits + self.names


class _MethodDefinition(ctypes.Structure):
    """``PyMethodDef`` of CPython's stable interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


@functools.cache
def is_supported() -> bool:
    """Tell whether objects lie in memory as the code expects: CPython, with its lock, and NumPy's published fields.

    Examples
    --------
    >>> is_supported() in (True, False)
    True
    """
    if (
        sys.implementation.name != "cpython"
        or object.__basicsize__ != HEADER_BYTES
        or ctypes.sizeof(ctypes.c_void_p) != 8
    ):
        return False
    array = np.zeros((3, 5), np.float32)
    start = id(array) + HEADER_BYTES

    def word(offset: int) -> int:
        return ctypes.c_uint64.from_address(start + offset).value

    def half(offset: int) -> int:
        return ctypes.c_int32.from_address(start + offset).value

    return (
        word(-8) == id(np.ndarray)
        and word(ARRAY_FIELDS["data"]) == array.ctypes.data
        and half(ARRAY_FIELDS["nd"]) == 2
        and list((ctypes.c_int64 * 2).from_address(word(ARRAY_FIELDS["dimensions"]))) == [3, 5]
        and word(ARRAY_FIELDS["descr"]) == id(np.dtype(np.float32))
        and half(ARRAY_FIELDS["flags"]) & REQUIRED_FLAGS == REQUIRED_FLAGS
    )


@functools.cache
def function_addresses() -> tuple[int, ...]:
    """Addresses of :data:`FUNCTIONS` in this process."""
    found = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in FUNCTIONS)
    return tuple(address or 0 for address in found)


class NativeCall:
    """A function object over machine code.

    Attributes
    ----------
    function
        Takes the context and the dictionary of inputs; returns the status, or :data:`NOT_TAKEN`. The object that holds
        it must live as long as it is called, and so must the code.
    """

    def __init__(self, address: int) -> None:
        self._definition = _MethodDefinition(PYTHON_CALL.encode(), address, _METH_FASTCALL, None)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        make.restype = ctypes.py_object
        self.function: Callable[[Any, dict[str, Any]], int] = make(ctypes.addressof(self._definition), None, None)
