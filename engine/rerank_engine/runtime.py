"""Run a model: map the stored machine code and call it. A stored image needs no compiler in the process.

Where machine code is missing it is compiled once and stored; where it may not run at all, NumPy answers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.codegen.image import ExecutableMemory, Image
from rerank_engine.errors import CompileError, InputError, ModelFileError
from rerank_engine.format import content_hash, read_model
from rerank_engine.graph import DTYPES, Dim, Graph, Value, is_per_candidate, row_count
from rerank_engine.machine import machine_signature
from rerank_engine.packing import pack_all
from rerank_engine.paths import user_cache_dir

if TYPE_CHECKING:
    from rerank_engine.model import Model

ENGINE_VERSION = "1"
"""Part of every image's key; raised when generated code or the calling contract changes."""

_DEVICES = ("auto", "cpu")
_ALIGNMENT = 64
_PADDING = 64
_FIRST_CAPACITY = 128


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
        self._local = threading.local()
        self._code: _MachineCode | None = None
        try:
            image, self.backend_reason = _find_image(graph, self.cache_path)
            self._code = _MachineCode(graph, image)
            self.backend = "cpu"
        except (CompileError, ImportError) as error:
            self.backend = "numpy"
            self.backend_reason = f"no machine code: {error}"

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Score candidates.

        Parameters
        ----------
        inputs
            One array for each input; the candidate dimension may have any length, 0 included. Integer and float
            dtypes are converted where no value can change its meaning (float64 to float32, any integer to int64).

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
        candidates = self._check(inputs)
        results = self._run_session(inputs, candidates)
        return results if len(results) > 1 else next(iter(results.values()))

    def _run_session(self, inputs: Mapping[str, NDArray[Any]], candidates: int) -> dict[str, NDArray[Any]]:
        if self._code is None:
            from rerank_engine.reference import evaluate

            with np.errstate(over="ignore", invalid="ignore"):
                cast = {value.name: np.asarray(inputs[value.name], DTYPES[value.dtype]) for value in self.inputs}
            results = evaluate(self._graph, cast, candidates)
            # A result may be an input or a weight itself, which the caller must not get to write into.
            return {value.name: np.array(results[value.name], DTYPES[value.dtype], order="C") for value in self.outputs}
        session: _Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = _Session(self._graph, self._code)
        return session.run(inputs, candidates)

    def _check(self, inputs: Mapping[str, NDArray[Any]]) -> int:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs must be a mapping from input name to array, got {type(inputs).__name__}")
        if len(inputs) != len(self.inputs) or any(value.name not in inputs for value in self.inputs):
            given = ", ".join(sorted(map(str, inputs))) or "none"
            raise InputError(f"expected inputs {', '.join(map(str, self.inputs))}; got {given}")
        candidates: int | None = None
        for value in self.inputs:
            array = inputs[value.name]
            if not isinstance(array, np.ndarray):
                raise InputError(f"input {value.name!r} must be a NumPy array, got {type(array).__name__}")
            if array.dtype != DTYPES[value.dtype] and not _converts(array.dtype, DTYPES[value.dtype]):
                raise InputError(f"input {value}: dtype {array.dtype} does not convert; give {value.dtype}")
            if len(array.shape) != len(value.shape) or any(
                want != have for want, have in zip(value.shape, array.shape, strict=True) if not isinstance(want, Dim)
            ):
                raise InputError(f"input {value} got shape {array.shape}")
            if is_per_candidate(value.shape):
                own, rest = divmod(array.shape[0], value.shape[0].scale)  # type: ignore[union-attr]
                if rest:
                    raise InputError(
                        f"input {value} got shape {array.shape}: dimension 0 must be a multiple of the factor"
                    )
                if candidates not in (None, own):
                    raise InputError(f"input {value} got shape {array.shape}; other inputs say N = {candidates}")
                candidates = own
        return candidates or 0

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
    """Buffers of one thread: an arena, and inputs and outputs at fixed addresses with room for some candidates."""

    def __init__(self, graph: Graph, code: _MachineCode) -> None:
        self._graph = graph
        self._code = code
        self._arena = _aligned(code.meta["arena_bytes"])
        self._weights_address = code.weights.ctypes.data
        self._arena_address = self._arena.ctypes.data
        self._reserve(_FIRST_CAPACITY)

    def _reserve(self, candidates: int) -> None:
        graph = self._graph
        # Allocated first and taken over together: when memory runs out, the smaller buffers stay in use.
        inputs = [_buffer(graph.values[name], candidates) for name in graph.inputs]
        outputs = [_buffer(graph.values[name], candidates) for name in graph.outputs]
        input_table = np.array([array.ctypes.data for array in inputs], dtype=np.uintp)
        output_table = np.array([array.ctypes.data for array in outputs], dtype=np.uintp)
        self._inputs, self._outputs = inputs, outputs
        self._input_table, self._output_table = input_table, output_table
        self._input_address, self._output_address = input_table.ctypes.data, output_table.ctypes.data
        self._capacity = candidates

    def run(self, inputs: Mapping[str, NDArray[Any]], candidates: int) -> dict[str, NDArray[Any]]:
        if candidates > self._capacity:
            self._reserve(1 << (candidates - 1).bit_length())
        for name, buffer in zip(self._graph.inputs, self._inputs, strict=True):
            array = inputs[name]
            if array.ndim == 0:
                array = array.reshape(1)
            if array.dtype == buffer.dtype:
                buffer[: len(array)] = array
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, quietly
                    buffer[: len(array)] = array
        status = self._code.call(
            self._weights_address, self._arena_address, self._input_address, self._output_address, candidates
        )
        if status:
            self._raise_bad_id(status)
        return {
            name: buffer[: row_count(self._graph.values[name].shape, candidates)[0]].copy()
            if self._graph.values[name].shape
            else buffer.reshape(()).copy()
            for name, buffer in zip(self._graph.outputs, self._outputs, strict=True)
        }

    def _raise_bad_id(self, status: int) -> None:
        gather = self._code.meta["gathers"][status - 1]
        bad = int(self._arena[8:16].view(np.int64)[0])
        raise InputError(
            f"id {bad} in {gather['ids']!r} is outside the table of node {gather['node']!r}, which has"
            f" {gather['rows']} rows; check that model and feature spec belong together"
        )


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.zeros(size + _ALIGNMENT + _PADDING, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size + _PADDING]


def _buffer(value: Value, candidates: int) -> NDArray[Any]:
    shape = row_count(value.shape, candidates) or (1,)
    dtype = DTYPES[value.dtype]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return _aligned(size)[:size].view(dtype).reshape(shape)


def _converts(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Whether values keep their meaning: any integer to int64, smaller integers to int32, floats to float32."""
    if want.kind == "f":
        return have.kind == "f"
    if want.kind == "i":
        return have.kind in "iu" and np.can_cast(have, want)
    return False


__all__ = ["Engine", "image_key", "load"]
