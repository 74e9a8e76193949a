"""Machine code, and the buffers that one thread calls it with."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rerank_engine import native_call
from rerank_engine.arena import (
    BAD_VALUE_OFFSET,
    PADDING,
    REUSE_OFFSET,
    SIZES_OFFSET,
    DynamicBuffer,
    aligned_bytes,
    largest_size,
    place_dynamic,
)
from rerank_engine.dimensions import Dim, product
from rerank_engine.errors import InputError
from rerank_engine.image import ExecutableMemory, Image
from rerank_engine.interface import Interface, from_plain
from rerank_engine.values import CANDIDATES, DTYPES, Value, concrete

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Out: TypeAlias = "Array | Mapping[str, Array] | None"
"""Where results go: an array for the only output, arrays by name, or nowhere in particular."""

_FIRST_CAPACITY = 128
_FIRST_BYTES = 256 * 1024 * 1024
"""A session starts with room for this size of every named dimension, or for less where that takes more bytes."""


class MachineCode:
    """Executable code and the constants that it reads, shared by all threads.

    Attributes
    ----------
    image
        Where they come from.
    interface
        The outside of the model.

    Raises
    ------
    CompileError
        The system forbids executable memory.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self.meta = image.meta
        self.interface = from_plain(self.meta["interface"], image.data[self.meta["interface_offset"] :])
        self.memory = ExecutableMemory(image.code)
        entries: dict[str, int] = self.meta["entries"]
        direct = entries.get(native_call.PYTHON_CALL)
        self.direct: native_call.NativeCall | None = None
        if direct is not None and native_call.is_supported():
            self.direct = native_call.NativeCall(self.memory.address + direct)
        self.weights_address = np.frombuffer(image.data, np.uint8).ctypes.data

    @functools.cached_property
    def call(self) -> Callable[..., int]:
        """The model over raw addresses; most processes never need it."""
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4, ctypes.c_int64)
        return kind(self.memory.address + self.meta["entries"][native_call.ENTRY])


class Session:
    """Buffers of one thread: an arena, and inputs and outputs at fixed addresses with room for some sizes."""

    def __init__(self, code: MachineCode) -> None:
        self._code = code
        self._interface = code.interface
        self._names: list[str] = code.meta["names"]
        self._weights_address = code.weights_address
        self._capacity: dict[str, int] = {}
        self._direct = code.direct.function if code.direct is not None else None
        self._history_key: Hashable = None
        self._is_list = [value.shape for value in self._interface.outputs] == [(Dim(CANDIDATES),)]
        capacity, places, arena_bytes = code.meta["first"]
        self._reserve(dict.fromkeys(self._names, capacity), places, arena_bytes)

    def run_directly(self, inputs: Any, history_key: Hashable, out: Out = None) -> Array | dict[str, Array] | None:
        """Run with arrays that need no conversion; None when they are not of that kind.

        Parameters
        ----------
        inputs, history_key, out
            See :meth:`rerank_engine.runtime.Engine.run`.

        Returns
        -------
        ndarray, dict or None
            The only output, or all by name.

        Raises
        ------
        InputError
            An id is outside its table.
        """
        if self._direct is None or type(inputs) is not dict:
            return None
        if history_key is not None or self._history_key is not None:
            self._announce(history_key)
        status = self._direct(self._context, inputs)
        if status:
            self._history_key = None
            if status > 0:
                raise self._bad_value(status)
            return None
        self._history_key = history_key
        if self._is_list and out is None:
            return self._outputs[0][: self._sizes[self._place_of_list]].copy()
        results = self._results(dict(zip(self._names, self._sizes.tolist(), strict=True)), out)
        return results if len(results) > 1 else next(iter(results.values()))

    def run(
        self, inputs: Mapping[str, Array], sizes: dict[str, int], history_key: Hashable = None, out: Out = None
    ) -> dict[str, Array]:
        """Convert the inputs into the session's buffers and run.

        Parameters
        ----------
        inputs
            Arrays whose shapes say ``sizes`` and whose dtypes convert.
        sizes
            Of the named dimensions.
        history_key, out
            See :meth:`rerank_engine.runtime.Engine.run`.

        Raises
        ------
        InputError
            An id is outside its table, there is no memory for these sizes, or ``out`` does not fit.
        """
        if any(sizes[name] > self._capacity[name] for name in self._names):
            self._make_room(sizes)
        self._announce(history_key)
        for index, name in enumerate(self._names):
            self._sizes[index] = sizes[name]
        for value, buffer in zip(self._interface.inputs, self._inputs, strict=True):
            array = inputs[value.name]
            target = buffer[: array.size].reshape(array.shape)
            if array.dtype == buffer.dtype:
                target[...] = array
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, quietly
                    target[...] = array
        status = self._code.call(
            self._weights_address,
            self._arena_address,
            self._input_address,
            self._output_address,
            sizes.get(CANDIDATES, 0),
        )
        if status:
            self._history_key = None
            raise self._bad_value(status)
        self._history_key = history_key
        return self._results(sizes, out)

    def _announce(self, history_key: Hashable) -> None:
        """Tell the code whether what it computed from the inputs without candidates in the last call still holds."""
        self._reuse[0] = history_key is not None and history_key == self._history_key
        self._history_key = None

    def _bad_value(self, status: int) -> InputError:
        bad = int(self._arena[BAD_VALUE_OFFSET : BAD_VALUE_OFFSET + 8].view(np.int64)[0])
        return InputError(self._code.meta["reports"][status - 1].replace("{value}", str(bad)))

    def _results(self, sizes: dict[str, int], out: Out) -> dict[str, Array]:
        results = {}
        for value, buffer in zip(self._interface.outputs, self._outputs, strict=True):
            shape = concrete(value.shape, sizes)
            results[value.name] = buffer[: math.prod(shape)].reshape(shape)
        return handed_over(results, out)

    # --- memory --------------------------------------------------------------------------------------------

    def _make_room(self, sizes: dict[str, int]) -> None:
        """Reserve for growing lists; where memory has no room to grow into, for these sizes only."""
        for grown in (_round_up, int):
            wanted = {name: max(self._capacity[name], grown(sizes[name])) for name in self._names}
            try:
                self._reserve(wanted, *_place(self._code.meta, wanted))
            except (MemoryError, OverflowError, ValueError):
                continue
            return
        needed = _bytes_for(self._code.meta, self._interface, wanted)
        raise InputError(f"the inputs say {sizes}: that needs {needed:,} bytes, more than there is")

    def _reserve(self, capacity: dict[str, int], places: list[int], arena_bytes: int) -> None:
        # Allocated first and taken over together: when memory runs out, the smaller buffers stay in use.
        arena = aligned_bytes(arena_bytes + PADDING)
        inputs = [_buffer(value, capacity) for value in self._interface.inputs]
        outputs = [_buffer(value, capacity) for value in self._interface.outputs]
        input_table = np.array([array.ctypes.data for array in inputs], dtype=np.uintp)
        output_table = np.array([array.ctypes.data for array in outputs], dtype=np.uintp)
        self._arena, self._inputs, self._outputs = arena, inputs, outputs
        self._input_table, self._output_table = input_table, output_table
        self._arena_address = arena.ctypes.data
        self._input_address, self._output_address = input_table.ctypes.data, output_table.ctypes.data
        header = arena[SIZES_OFFSET : SIZES_OFFSET + 8 * (len(self._names) + len(places))].view(np.int64)
        header[len(self._names) :] = places
        self._sizes = header[: len(self._names)]
        self._reuse = arena[REUSE_OFFSET : REUSE_OFFSET + 8].view(np.int64)
        self._history_key = None
        self._capacity = capacity
        if self._is_list:
            self._place_of_list = self._names.index(CANDIDATES)
        if self._direct is not None:
            self._context = self._make_context(capacity)

    def _make_context(self, capacity: dict[str, int]) -> Array:
        """What the machine code needs to read Python's objects by itself."""
        values, maxima = self._interface.inputs, self._interface.maxima
        layout = native_call.Layout(len(values), len(self._names))
        context = np.zeros(layout.words, np.uint64)
        context[layout.weights] = self._weights_address
        context[layout.arena] = self._arena_address
        context[layout.outputs] = self._output_address
        context[layout.array_type] = id(np.ndarray)
        addresses = native_call.function_addresses()
        context[layout.functions : layout.functions + len(addresses)] = addresses
        for index, (value, buffer) in enumerate(zip(values, self._inputs, strict=True)):
            # Names live as long as the interface, and NumPy has one object for each of these dtypes.
            context[layout.name(index)] = id(value.name)
            context[layout.descriptor(index)] = id(buffer.dtype)
            context[layout.buffer(index)] = buffer.ctypes.data
        for index, name in enumerate(self._names):
            context[layout.limits + index] = min(capacity[name], maxima.get(name, capacity[name]))
        return context


def handed_over(results: dict[str, Array], out: Out) -> dict[str, Array]:
    """Copies of the results, in the caller's arrays where there are any.

    Raises
    ------
    InputError
        Those are not the outputs' arrays.

    Examples
    --------
    >>> score = np.zeros(2, np.float32)
    >>> handed_over({"score": np.ones(2, np.float32)}, score)["score"] is score
    True
    """
    if out is None:
        return {name: array.copy() for name, array in results.items()}
    targets = {next(iter(results)): out} if len(results) == 1 and not isinstance(out, Mapping) else out
    if not isinstance(targets, Mapping) or targets.keys() != results.keys():
        raise InputError(f"out: expected an array for each of the outputs {', '.join(results)}")
    for name, array in results.items():
        target = targets[name]
        if (
            not isinstance(target, np.ndarray)
            or (target.shape, target.dtype) != (array.shape, array.dtype)
            or not target.flags.writeable
        ):
            raise InputError(f"out: output {name!r} needs a writable {array.dtype} array of shape {array.shape}")
    for name, array in results.items():
        targets[name][...] = array
    return {name: targets[name] for name in results}


def first_room(meta: Mapping[str, Any], interface: Interface) -> tuple[int, list[int], int]:
    """What a session starts with, so that a start plans nothing.

    Returns
    -------
    tuple
        Largest size of every named dimension, places of the values whose size depends on them, bytes of the arena.
    """
    first = _FIRST_CAPACITY
    while first > 1 and _bytes_for(meta, interface, dict.fromkeys(meta["names"], first)) > _FIRST_BYTES:
        first //= 2
    return first, *_place(meta, dict.fromkeys(meta["names"], first))


def _bytes_for(meta: Mapping[str, Any], interface: Interface, capacity: dict[str, int]) -> int:
    """Bytes of all buffers of a session with room for these sizes."""
    _, arena_bytes = _place(meta, capacity)
    return arena_bytes + sum(_buffer_bytes(value, capacity) for value in (*interface.inputs, *interface.outputs))


def _place(meta: Mapping[str, Any], capacity: dict[str, int]) -> tuple[list[int], int]:
    buffers = [DynamicBuffer(name, Dim.parse(size), first, last) for name, size, first, last in meta["dynamic"]]
    return place_dynamic(buffers, meta["arena_bytes"], capacity)


def _round_up(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _buffer(value: Value, sizes: Mapping[str, int]) -> Array:
    size = _buffer_bytes(value, sizes)
    return aligned_bytes(size + PADDING)[:size].view(DTYPES[value.dtype])


def _buffer_bytes(value: Value, sizes: Mapping[str, int]) -> int:
    return largest_size(product([*value.shape, DTYPES[value.dtype].itemsize]), sizes)
