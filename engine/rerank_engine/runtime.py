"""Run a model: map the stored machine code and call it. A stored image needs no compiler in the process.

Where machine code is missing it is compiled once and stored; where it may not run at all, NumPy answers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.binding import bind_sizes
from rerank_engine.codegen.image import ExecutableMemory, Image
from rerank_engine.dimensions import Dim, product
from rerank_engine.errors import CompileError, InputError, ModelFileError
from rerank_engine.format import content_hash, read_model
from rerank_engine.graph import CANDIDATES, DTYPES, Graph, Value, concrete
from rerank_engine.machine import machine_signature
from rerank_engine.packing import pack_all
from rerank_engine.paths import user_cache_dir
from rerank_engine.plan.plan import BAD_VALUE_OFFSET, SIZES_OFFSET, DynamicBuffer, largest_size, place_dynamic

if TYPE_CHECKING:
    from rerank_engine.model import Model

ENGINE_VERSION = "4"
"""Part of every image's key; raised when generated code or the calling contract changes."""

_DEVICES = ("auto", "cpu")
_ALIGNMENT = 64
_PADDING = 64
_FIRST_CAPACITY = 128
_FIRST_BYTES = 256 * 1024 * 1024
"""A session starts with room for this size of every named dimension, or for less where that takes more bytes."""


def load(
    model: str | Path | Model,
    *,
    cache_dir: str | Path | None = None,
    threads: int = 1,
    device: str = "auto",
) -> Engine:
    """Make a model ready to run.

    Parameters
    ----------
    model
        Path of a ``.rrm`` file, or a converted model.
    cache_dir
        Where machine code is kept; by default the user's cache directory.
    threads
        Threads for one call; 1 is the only value in this version.
    device
        ``"auto"`` or ``"cpu"``.

    Returns
    -------
    Engine
        Safe to use from many threads at once.

    Raises
    ------
    ModelFileError
        The file is damaged or of another version.
    InputError
        An option is not known.

    Examples
    --------
    >>> engine = load("din.rrm")  # doctest: +SKIP
    >>> scores = engine.run({"dense": features})  # doctest: +SKIP
    """
    if threads != 1:
        raise InputError(f"threads={threads} is not supported in this version; use threads=1")
    if device not in _DEVICES:
        raise InputError(f"device {device!r} is not known; known: {', '.join(_DEVICES)}")
    if isinstance(model, str | Path):
        graph, identity = read_model(model), content_hash(model)
    else:
        # A stored model is loaded without the code that converts one.
        from rerank_engine.model import Model

        if not isinstance(model, Model):
            raise InputError(f"model: expected the path of a model file or a Model, got {type(model).__name__}")
        graph, identity = model.graph, model.content_hash
    directory = Path(cache_dir) if cache_dir is not None else user_cache_dir() / "images"
    return Engine(graph, identity, directory)


class Engine:
    """A model that is ready to run.

    Attributes
    ----------
    inputs, outputs
        Values that :meth:`run` takes and gives, in order.
    backend
        ``"cpu"`` (machine code) or ``"numpy"``.
    backend_reason
        Why this backend was taken.
    model_hash
        SHA-256 of the model, in hex.
    """

    def __init__(self, graph: Graph, model_hash: str, cache_dir: Path) -> None:
        self._graph = graph
        self.model_hash = model_hash
        self.inputs: list[Value] = [graph.values[name] for name in graph.inputs]
        self.outputs: list[Value] = [graph.values[name] for name in graph.outputs]
        self.cache_path = cache_dir / f"{image_key(model_hash)}.rri"
        self._shrinking = _shrinking_dimensions(graph)
        self._local = threading.local()
        self._code: _MachineCode | None = None
        try:
            image, self.backend_reason = _find_image(graph, self.cache_path)
            self._code = _MachineCode(graph, image)
            self.backend = "cpu"
            self._reject_wrong_code()
        except (CompileError, ImportError) as error:
            self.backend, self._code = "numpy", None
            self.backend_reason = f"no machine code: {error}"

    def self_check(self) -> str:
        """Run the model's stored sample and compare.

        Returns
        -------
        str
            Where the answer differs from the stored one; empty when it does not, or when the model has no sample.

        Examples
        --------
        >>> engine.self_check()  # doctest: +SKIP
        ''
        """
        sample = self._graph.sample
        if sample is None:
            return ""
        from rerank_engine.sample import difference

        return difference(sample, self._run_session(sample.inputs, self._check(sample.inputs)))

    def _reject_wrong_code(self) -> None:
        """Fall back to NumPy when machine code gives other numbers than the model's stored sample."""
        wrong = self.self_check()
        if wrong:
            raise CompileError(f"the self-check failed: {wrong}")

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Score candidates.

        Parameters
        ----------
        inputs
            One array for each input; a named dimension may have any length up to its declared maximum, 0
            included. Integer and float dtypes are converted where no value can change its meaning (float64 to
            float32, any integer to int64).

        Returns
        -------
        ndarray or dict
            The output, or all of them by name when the model has several.

        Raises
        ------
        InputError
            An input is missing, unknown, of a wrong shape or dtype, or an id is outside its table.

        Examples
        --------
        >>> engine.run({"x": np.zeros((3, 8), np.float32)}).shape  # doctest: +SKIP
        (3,)
        """
        sizes = self._check(inputs)
        results = self._run_session(inputs, sizes)
        return results if len(results) > 1 else next(iter(results.values()))

    def _run_session(self, inputs: Mapping[str, NDArray[Any]], sizes: dict[str, int]) -> dict[str, NDArray[Any]]:
        if self._code is None:
            from rerank_engine.reference import evaluate

            with np.errstate(over="ignore", invalid="ignore"):
                cast = {value.name: np.asarray(inputs[value.name], DTYPES[value.dtype]) for value in self.inputs}
            results = evaluate(self._graph, cast)
            # A result may be an input or a weight itself, which the caller must not get to write into.
            return {value.name: np.array(results[value.name], DTYPES[value.dtype], order="C") for value in self.outputs}
        session: _Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = _Session(self._graph, self._code)
        return session.run(inputs, sizes)

    def _check(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs must be a mapping from input name to array, got {type(inputs).__name__}")
        if len(inputs) != len(self.inputs) or any(value.name not in inputs for value in self.inputs):
            given = ", ".join(sorted(map(str, inputs))) or "none"
            raise InputError(f"expected inputs {', '.join(map(str, self.inputs))}; got {given}")
        for value in self.inputs:
            array = inputs[value.name]
            if not isinstance(array, np.ndarray):
                raise InputError(f"input {value.name!r} must be a NumPy array, got {type(array).__name__}")
            if array.dtype != DTYPES[value.dtype] and not _converts(array.dtype, DTYPES[value.dtype]):
                raise InputError(f"input {value}: dtype {array.dtype} does not convert; give {value.dtype}")
        sizes = bind_sizes(self.inputs, inputs, self._graph.maxima)
        for dim, name in self._shrinking:
            if dim.evaluate(sizes) < 0:
                raise InputError(
                    f"the inputs are too short: value {name!r} would have {dim} = {dim.evaluate(sizes)} rows"
                )
        return sizes

    def explain(self) -> dict[str, Any]:
        """Tell what was planned and why: backend, target, block size, memory, steps.

        Examples
        --------
        >>> engine.explain()["backend"]  # doctest: +SKIP
        'cpu'
        """
        meta = self._code.meta if self._code else {}
        return {
            "model": self._graph.name,
            "model_hash": self.model_hash,
            "backend": self.backend,
            "reason": self.backend_reason,
            "image": str(self.cache_path),
            **{key: meta[key] for key in ("target", "block", "arena_bytes", "weight_bytes", "steps") if key in meta},
            "code_bytes": len(self._code.image.code) if self._code else 0,
        }


def image_key(model_hash: str) -> str:
    """Name of the image: everything that can change its answer or its speed."""
    parts = [model_hash, ENGINE_VERSION, *machine_signature()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _find_image(graph: Graph, path: Path) -> tuple[Image, str]:
    """Read the stored image, or compile and store one."""
    try:
        image = Image.read(path)
        if image.meta.get("key") != path.stem:
            raise ModelFileError(f"image {path} was made for another model or machine")
        return image, "stored machine code"
    except FileNotFoundError:
        why = "compiled for this machine"
    except (ModelFileError, OSError, ValueError) as error:
        why = f"compiled again: {error}"
    from rerank_engine.codegen.compile import compile_graph

    image = compile_graph(graph)
    image.meta["key"] = path.stem
    try:
        image.write(path)
    except OSError as error:
        why += f"; not stored: {error}"
    return image, why


class _MachineCode:
    """Executable code and packed weights, shared by all threads."""

    def __init__(self, graph: Graph, image: Image) -> None:
        self.image = image
        self.meta = image.meta
        self.memory = ExecutableMemory(image.code)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4, ctypes.c_int64)
        self.call = kind(self.memory.address + self.meta["entry"])
        self.weights = _aligned(self.meta["weight_bytes"])
        pack_all(graph.constants, (tuple(item) for item in self.meta["weights"]), self.weights)


class _Session:
    """Buffers of one thread: an arena, and inputs and outputs at fixed addresses with room for some sizes."""

    def __init__(self, graph: Graph, code: _MachineCode) -> None:
        self._graph = graph
        self._code = code
        self._names: list[str] = code.meta["names"]
        self._dynamic = [
            DynamicBuffer(name, Dim.parse(size), first, last) for name, size, first, last in code.meta["dynamic"]
        ]
        self._weights_address = code.weights.ctypes.data
        self._capacity: dict[str, int] = {}
        first = _FIRST_CAPACITY
        while first > 1 and self._bytes_for(dict.fromkeys(self._names, first)) > _FIRST_BYTES:
            first //= 2
        self._reserve(dict.fromkeys(self._names, first))

    def _bytes_for(self, capacity: dict[str, int]) -> int:
        """Bytes of all buffers with room for these sizes."""
        _, arena_bytes = place_dynamic(self._dynamic, self._code.meta["arena_bytes"], capacity)
        values = (self._graph.values[name] for name in (*self._graph.inputs, *self._graph.outputs))
        return arena_bytes + sum(_buffer_bytes(value, capacity) for value in values)

    def _make_room(self, sizes: dict[str, int]) -> None:
        """Reserve for growing lists; where memory has no room to grow into, for these sizes only."""
        for grown in (_round_up, int):
            wanted = {name: max(self._capacity[name], grown(sizes[name])) for name in self._names}
            try:
                self._reserve(wanted)
            except (MemoryError, OverflowError, ValueError):
                continue
            return
        raise InputError(f"the inputs say {sizes}: that needs {self._bytes_for(wanted):,} bytes, more than there is")

    def _reserve(self, capacity: dict[str, int]) -> None:
        graph = self._graph
        places, arena_bytes = place_dynamic(self._dynamic, self._code.meta["arena_bytes"], capacity)
        # Allocated first and taken over together: when memory runs out, the smaller buffers stay in use.
        arena = _aligned(arena_bytes)
        inputs = [_buffer(graph.values[name], capacity) for name in graph.inputs]
        outputs = [_buffer(graph.values[name], capacity) for name in graph.outputs]
        input_table = np.array([array.ctypes.data for array in inputs], dtype=np.uintp)
        output_table = np.array([array.ctypes.data for array in outputs], dtype=np.uintp)
        self._arena, self._inputs, self._outputs = arena, inputs, outputs
        self._input_table, self._output_table = input_table, output_table
        self._arena_address = arena.ctypes.data
        self._input_address, self._output_address = input_table.ctypes.data, output_table.ctypes.data
        header = arena[SIZES_OFFSET : SIZES_OFFSET + 8 * (len(self._names) + len(places))].view(np.int64)
        header[len(self._names) :] = places
        self._sizes = header[: len(self._names)]
        self._capacity = capacity

    def run(self, inputs: Mapping[str, NDArray[Any]], sizes: dict[str, int]) -> dict[str, NDArray[Any]]:
        if any(sizes[name] > self._capacity[name] for name in self._names):
            self._make_room(sizes)
        for index, name in enumerate(self._names):
            self._sizes[index] = sizes[name]
        for name, buffer in zip(self._graph.inputs, self._inputs, strict=True):
            array = inputs[name]
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
            bad = int(self._arena[BAD_VALUE_OFFSET : BAD_VALUE_OFFSET + 8].view(np.int64)[0])
            raise InputError(self._code.meta["reports"][status - 1].replace("{value}", str(bad)))
        results = {}
        for name, buffer in zip(self._graph.outputs, self._outputs, strict=True):
            shape = concrete(self._graph.values[name].shape, sizes)
            results[name] = buffer[: math.prod(shape)].reshape(shape).copy()
        return results


def _round_up(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _shrinking_dimensions(graph: Graph) -> list[tuple[Dim, str]]:
    """Dimensions that could become negative, each with a value that has it."""
    found: dict[Dim, str] = {}
    for value in graph.values.values():
        for dim in value.shape:
            if isinstance(dim, Dim) and any(coefficient < 0 for _, coefficient in dim.terms):
                found.setdefault(dim, value.name)
    return list(found.items())


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.zeros(size + _ALIGNMENT + _PADDING, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size + _PADDING]


def _buffer(value: Value, sizes: Mapping[str, int]) -> NDArray[Any]:
    size = _buffer_bytes(value, sizes)
    return _aligned(size)[:size].view(DTYPES[value.dtype])


def _buffer_bytes(value: Value, sizes: Mapping[str, int]) -> int:
    return largest_size(product([*value.shape, DTYPES[value.dtype].itemsize]), sizes)


def _converts(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether values keep their meaning: any integer to int64, smaller integers to int32, floats to float32."""
    if want.kind == "f":
        return have.kind == "f"
    if want.kind == "i":
        return have.kind in "iu" and np.can_cast(have, want)
    return False


__all__ = ["Engine", "image_key", "load"]
