"""An ONNX model from its file, with the data that it keeps beside it, checked before anything is built of it.

A model file comes from others. It may not make us read files outside of its own folder, and what its functions stand
for is counted before they are written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.local_functions import inline_functions
from rerank_engine.importers.protobuf_texts import check_texts

if TYPE_CHECKING:
    import onnx

MOST_NODES = 20_000
"""A model that would become more nodes than this, with functions and loops written out, is refused."""

_DEEPEST = 64
"""Subgraphs in subgraphs, and functions in functions, beyond this are refused."""


def read_onnx(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Read a model, check it, and put its functions in the place of the nodes that call them.

    Parameters
    ----------
    source
        Path of a binary ONNX file, or the model itself, with all of its data.

    Raises
    ------
    ConversionError
        The file cannot be read, the model breaks ONNX's rules, a tensor lies in a file outside of the model's folder,
        or the functions call each other in a circle or stand for too many nodes.

    Examples
    --------
    >>> read_onnx("no_such_model.onnx")
    Traceback (most recent call last):
    ...
    rerank_engine.errors.ConversionError: cannot read the ONNX model no_such_model.onnx: [Errno 2] No such file ...
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx.external_data_helper import load_external_data_for_model

    if not isinstance(source, str | Path | onnx.ModelProto):
        raise ConversionError(f"expected a path or an onnx.ModelProto, got {type(source).__name__}")
    path = Path(source) if isinstance(source, str | Path) else None
    label = "cannot read the ONNX model" + (f" {path}" if path is not None else "")
    try:
        model: Any = source if path is None else onnx.ModelProto.FromString(path.read_bytes())
        check_texts(model, label)
        _check_depth(model.graph.node, _DEEPEST, label)
        _check_places(model, path, label)
        if path is not None:
            load_external_data_for_model(model, str(path.parent))
        onnx.checker.check_model(model)
        if model.functions:
            _check_calls(model, label)
            model = inline_functions(model)
    except (DecodeError, OSError, RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ConversionError(f"{label}: {error}") from error
    return model


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model, also those in subgraphs, functions and the parts of sparse tensors."""
    waiting = [model.graph]
    nodes: list[Iterable[onnx.NodeProto]] = [function.node for function in model.functions]
    while waiting or nodes:
        if waiting:
            graph = waiting.pop()
            nodes.append(graph.node)
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            continue
        for node in nodes.pop():
            for entry in node.attribute:
                yield from (entry.t, *entry.tensors)
                for sparse in (entry.sparse_tensor, *entry.sparse_tensors):
                    yield from (sparse.values, sparse.indices)
                waiting += _graphs(entry)


def array_of(tensor: onnx.TensorProto) -> NDArray[Any]:
    """The numbers of a tensor.

    Raises
    ------
    ConversionError
        Its bytes do not fit its shape and type, it holds texts, or it lies in another file.

    Examples
    --------
    >>> from onnx import numpy_helper
    >>> array_of(numpy_helper.from_array(np.array([1.5, 2.0])))
    array([1.5, 2. ])
    """
    from onnx import TensorProto, numpy_helper

    where = f"tensor {tensor.name!r} of shape {list(tensor.dims)[:9]} and type {tensor.data_type}"
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ConversionError(f"{where} lies in another file, which was not loaded")
    if tensor.data_type == TensorProto.STRING:
        raise ConversionError(f"{where} holds texts, which are not supported")
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ConversionError(f"{where} cannot be read: {error!r}") from error


def count_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Number of nodes, with those in subgraphs."""
    return sum(
        1 + sum(count_nodes(graph.node) for entry in node.attribute for graph in _graphs(entry)) for node in nodes
    )


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _check_places(model: onnx.ModelProto, path: Path | None, label: str) -> None:
    """See that tensors in other files lie in the folder of the model."""
    from onnx import TensorProto

    for tensor in tensors_of(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if path is None:
            raise ConversionError(
                f"{label}: the data of tensor {tensor.name!r} lies in another file; give the path of the model, or load"
                " the data into the model first"
            )
        folder = path.parent.resolve()
        for place in [entry.value for entry in tensor.external_data if entry.key == "location"] or [""]:
            if not place or Path(place).is_absolute() or not (folder / place).resolve().is_relative_to(folder):
                raise ConversionError(
                    f"{label}: the data of tensor {tensor.name!r} lies in {place!r}, which is not in the model's folder"
                )


def _check_depth(nodes: Iterable[onnx.NodeProto], depth: int, label: str) -> None:
    for node in nodes:
        for entry in node.attribute:
            for graph in _graphs(entry):
                if not depth:
                    raise ConversionError(f"{label}: subgraphs are nested deeper than {_DEEPEST}")
                _check_depth(graph.node, depth - 1, label)


def _check_calls(model: onnx.ModelProto, label: str) -> None:
    """Count the nodes that a model has with its functions written out."""
    functions = {(entry.domain, entry.name, entry.overload): entry for entry in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto], callers: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in callers:
                raise ConversionError(f"{label}: function {node.op_type!r} calls itself")
            if key in functions and key not in sizes:
                if len(callers) >= _DEEPEST:
                    raise ConversionError(f"{label}: functions are nested deeper than {_DEEPEST}")
                sizes[key] = size(functions[key].node, (*callers, key))
            total += sizes.get(key, 1)
            total += sum(size(graph.node, callers) for entry in node.attribute for graph in _graphs(entry))
            if total > MOST_NODES:
                raise ConversionError(f"{label}: with its functions written out it has more than {MOST_NODES} nodes")
        return total

    size(model.graph.node, ())
