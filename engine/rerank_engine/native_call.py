"""Machine code as a function of the interpreter: what both sides agree on, and how the function object is made."""

from __future__ import annotations

import ctypes
import functools
import struct
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
    # Read as bytes at once: a start waits for this, and a ctypes object for each field takes ten times as long.
    fields = memoryview(ctypes.string_at(id(array), np.ndarray.__basicsize__))
    words = fields[: len(fields) // 8 * 8].cast("Q")

    def word(name: str) -> int:
        return words[(HEADER_BYTES + ARRAY_FIELDS[name]) // 8]

    return (
        len(words) * 8 > HEADER_BYTES + ARRAY_FIELDS["flags"]
        and words[1] == id(np.ndarray)
        and word("data") == array.ctypes.data
        and word("nd") & 0xFFFFFFFF == 2
        and ctypes.string_at(word("dimensions"), 16) == struct.pack("qq", 3, 5)
        and word("descr") == id(np.dtype(np.float32))
        and word("flags") & REQUIRED_FLAGS == REQUIRED_FLAGS
    )


@functools.cache
def function_addresses() -> tuple[int, ...]:
    """Addresses of :data:`FUNCTIONS` in this process."""
    functions = [getattr(ctypes.pythonapi, name) for name in FUNCTIONS]
    return tuple(ctypes.c_size_t.from_address(ctypes.addressof(function)).value for function in functions)


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
