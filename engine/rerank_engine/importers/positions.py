"""What handlers of shapes and positions share: known integers, ranges, and parts of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.graph import DTYPES, Dim, shape_attribute
from rerank_engine.importers.shapes import ShapeValue, is_at_least
from rerank_engine.ops.layout import END
from rerank_engine.ops.ranges import ceil_divide

if TYPE_CHECKING:
    import onnx

    from rerank_engine.importers.onnx import OnnxBuilder

_FAR = 10**9
"""Exporters write this (tf2onnx), or more, for the end of an axis; no list is that long."""

MOST_POSITIONS = 1 << 24
"""A constant range of more numbers than this is refused: no list of candidates is that long."""


def given(node: onnx.NodeProto, index: int) -> str:
    """Name of an input, empty when it is left out."""
    return node.input[index] if index < len(node.input) else ""


def scalar(array: NDArray[Any]) -> Any:
    """The one number of an array, or None."""
    return array.reshape(-1)[0] if array.size == 1 else None


def known_shape(builder: OnnxBuilder, name: str, what: str) -> ShapeValue:
    """Integers, or expressions over named dimensions, behind an ONNX name.

    Raises
    ------
    UnsupportedOperatorError
        They depend on the numbers that the model is given.
    """
    value = builder.shape_value(name)
    if value is None:
        raise builder.refuse(f"{what} ({name!r}) must be known when the model is converted{_way_out(builder, name)}")
    return value


def known_integers(builder: OnnxBuilder, name: str, what: str) -> list[int]:
    """Constant integers behind an ONNX name.

    Raises
    ------
    UnsupportedOperatorError
        They are no constants.
    """
    value = known_shape(builder, name, what)
    if not value.is_known:
        raise builder.refuse(f"{what} ({name!r}) must be constant, not {', '.join(map(str, value.entries))}")
    return [entry for entry in value.entries if isinstance(entry, int)]


def _way_out(builder: OnnxBuilder, name: str) -> str:
    return f"; give constants={{{name!r}: …}}" if builder.names.get(name) in builder.graph.inputs else ""


def axes_known(builder: OnnxBuilder, node: onnx.NodeProto, since: int) -> list[int]:
    """Axes from the attribute of old opsets or the input of new ones; empty when there are none."""
    if builder.opset < since:
        return list(builder.attributes({"axes": []})["axes"])
    builder.attributes({})
    name = given(node, 1)
    return known_integers(builder, name, "axes") if name else []


def numbers(
    builder: OnnxBuilder, entries: Sequence[int | Dim], dtype: str = "int64", *, is_scalar: bool = False
) -> str:
    """Name in the graph of a vector, or of a number, that holds sizes."""
    if any(isinstance(entry, Dim) for entry in entries):
        attributes = {"entries": shape_attribute(entries), "is_scalar": int(is_scalar), "dtype": dtype}
        return builder.emit("Dimensions", [], attributes)
    array = np.array(entries, DTYPES[dtype])
    return builder.own_constant("sizes", array.reshape(()) if is_scalar else array)


def iota(builder: OnnxBuilder, count: int | Dim, dtype: str = "int64") -> str:
    """Name in the graph of the vector 0, 1, ... of ``count`` numbers.

    Raises
    ------
    UnsupportedOperatorError
        There are more than :data:`MOST_POSITIONS`.
    """
    if isinstance(count, Dim):
        return builder.emit("Range", [], {"count": (str(count),), "dtype": dtype})
    if count > MOST_POSITIONS:
        raise builder.refuse(f"an axis of {count} entries is too long to be numbered; at most {MOST_POSITIONS}")
    return builder.own_constant("positions", np.arange(count, dtype=DTYPES[dtype]))


def cut(
    builder: OnnxBuilder,
    name: str,
    axis: int,
    start: int | Dim,
    stop: int | Dim,
    step: int = 1,
    output: str | None = None,
) -> str:
    """Append a slice as ONNX writes it, from ``start`` to before ``stop``, and return the name of its result.

    Along an axis of known size the range is cut to fit. Where a named dimension takes part it must fit when the
    model runs; a size that would depend on which of two dimensions is larger is no polynomial.

    Raises
    ------
    UnsupportedOperatorError
        The number of elements cannot be told.
    """
    dim = builder.graph.values[name].shape[axis]
    if step == 0:
        raise builder.refuse("step 0 goes nowhere")
    if isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int):
        indices = range(*slice(start, stop, step).indices(dim))
        if len(indices) == 0:
            return builder.emit("Slice", [name], {"axis": axis, "start": 0, "stop": 0}, output)
        if indices == range(dim):
            return builder.emit("Identity", [name], output=output)
        after = indices.start + len(indices) * step
        attributes = {"axis": axis, "start": indices.start, "stop": after if after >= 0 else -END, "step": step}
        return builder.emit("Slice", [name], attributes, output)
    first, last = _position(builder, start, dim, step), _position(builder, stop, dim, step)
    count = ceil_divide(last - first if step > 0 else first - last, abs(step))
    if count is None:
        raise builder.refuse(
            f"range {start}:{stop}:{step} of dimension {dim}: its length is no sum of named dimensions"
        )
    if isinstance(count, int) and count <= 0:
        return builder.emit("Slice", [name], {"axis": axis, "start": 0, "stop": 0}, output)
    if (first, count, step) == (0, dim, 1):
        return builder.emit("Identity", [name], output=output)
    from_end = first - dim
    if isinstance(first, int) or (isinstance(from_end, int) and from_end < 0):
        after_last = first + count * step
        past_end = after_last - dim
        if past_end == 0:
            after_last = END
        elif isinstance(after_last, int):
            after_last = after_last if after_last >= 0 else -END
        elif isinstance(past_end, int) and past_end < 0:
            after_last = past_end
        (stop_attribute,) = shape_attribute((after_last,))
        begin = first if isinstance(first, int) else from_end
        return builder.emit(
            "Slice", [name], {"axis": axis, "start": begin, "stop": stop_attribute, "step": step}, output
        )
    return _cut_by_index(builder, name, axis, first, count, step, output)


def _cut_by_index(
    builder: OnnxBuilder, name: str, axis: int, first: int | Dim, count: int | Dim, step: int, output: str | None
) -> str:
    """A range that begins at a size known at run time; a position before the start must not count from the end."""
    places = iota(builder, count)
    if step != 1:
        places = builder.emit("Mul", [places, numbers(builder, [step], is_scalar=True)])
    places = builder.emit("Add", [places, numbers(builder, [first], is_scalar=True)])
    before = builder.emit("Less", [places, numbers(builder, [0], is_scalar=True)])
    outside = numbers(builder, [END], is_scalar=True)
    places = builder.emit("Where", [before, outside, places])
    return builder.emit("Gather", [name, places], {"axis": axis}, output)


def _position(builder: OnnxBuilder, bound: int | Dim, dim: int | Dim, step: int) -> int | Dim:
    """A bound of a slice as a position from the start; -1 and the size stand for what lies outside."""
    end: int | Dim = dim if step > 0 else dim - 1
    if isinstance(bound, int):
        if bound >= _FAR:
            return end
        if bound <= -_FAR:
            return 0 if step > 0 else -1
        return dim + bound if bound < 0 else bound
    if is_at_least(bound, end):
        return end
    if is_at_least(-1, bound):
        return dim + bound
    if is_at_least(0, bound):
        raise builder.refuse(f"a range from or to {bound} means something else where that is 0")
    return bound
