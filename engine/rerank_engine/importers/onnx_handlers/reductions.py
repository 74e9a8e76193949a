"""Reductions over axes, pooling over everything behind the channels, and pooling by a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import DTYPES
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.convolutions import geometry
from rerank_engine.importers.onnx_handlers.registry import handles
from rerank_engine.importers.shapes import ShapeValue

if TYPE_CHECKING:
    import onnx

_AXES_ARE_INPUT_SINCE = {"ReduceSum": 13}
_LARGEST = {dtype: float(np.finfo(DTYPES[dtype]).max) for dtype in ("float32", "float64")}


def _read(builder: OnnxBuilder, node: onnx.NodeProto) -> tuple[tuple[int, ...] | None, int]:
    """Axes, None where nothing is to be reduced, and whether they are kept as 1."""
    if builder.opset < _AXES_ARE_INPUT_SINCE.get(node.op_type, 18):
        found = builder.attributes({"axes": None, "keepdims": 1})
        given, skips = list(found["axes"] or []), False
    else:
        found = builder.attributes({"keepdims": 1, "noop_with_empty_axes": 0})
        has_axes = len(node.input) > 1 and node.input[1]
        given = builder.integers(node.input[1], "axes") if has_axes else []
        skips = bool(found["noop_with_empty_axes"])
    rank = 1 if node.input[0] in builder.shapes else len(builder.value(node.input[0]).shape)
    if node.input[0] in builder.shapes and builder.shapes[node.input[0]].is_scalar:
        rank = 0
    axes = tuple(sorted(builder.axis(axis, rank) for axis in given))
    if len(set(axes)) != len(axes):
        raise builder.refuse(f"axes {given} name a dimension twice")
    if not axes and not skips:
        axes = tuple(range(rank))
    return axes or None, int(found["keepdims"])


def _reduce(
    builder: OnnxBuilder, op: str, source: str, axes: tuple[int, ...] | None, keepdims: int, output: str | None = None
) -> str:
    if axes is None:
        return builder.emit("Identity", [source], output=output)
    return builder.emit(op, [source], {"axes": axes, "keepdims": keepdims}, output)


def _cast(builder: OnnxBuilder, source: str, dtype: str, output: str | None = None) -> str:
    if builder.graph.values[source].dtype == dtype:
        return builder.emit("Identity", [source], output=output) if output else source
    return builder.emit("Cast", [source], {"to": dtype}, output)


def _scalar(builder: OnnxBuilder, node: onnx.NodeProto, number: float, dtype: str) -> str:
    return builder.own_constant(f"{node.output[0]}/number", np.array(number, DTYPES[dtype]))


@handles("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def _plain(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes, keepdims = _read(builder, node)
    if node.input[0] in builder.shapes and node.op_type in ("ReduceProd", "ReduceSum") and axes == (0,):
        known = builder.shapes[node.input[0]]
        total = product(known.entries) if node.op_type == "ReduceProd" else sum(known.entries)
        builder.shapes[node.output[0]] = ShapeValue((total,), not keepdims, known.dtype)
        return
    _reduce(builder, node.op_type, builder.value_name(node.input[0]), axes, keepdims, node.output[0])


@handles("ReduceL1", "ReduceSumSquare")
def _of_magnitudes(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes, keepdims = _read(builder, node)
    source = builder.value_name(node.input[0])
    if node.op_type == "ReduceL1":
        made = builder.emit("Abs", [source])
    else:
        made = builder.emit("Mul", [source, source])
    _reduce(builder, "ReduceSum", made, axes, keepdims, node.output[0])


def _through_float(builder: OnnxBuilder, node: onnx.NodeProto, source: str, compute: Callable[[str, str], str]) -> None:
    """Compute integers in float64 and cast back, floats in their dtype."""
    dtype = builder.graph.values[source].dtype
    wide = dtype if dtype in _LARGEST else "float64"
    _cast(builder, compute(_cast(builder, source, wide), wide), dtype, node.output[0])


@handles("ReduceL2")
def _length(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes, keepdims = _read(builder, node)
    source = builder.value_name(node.input[0])

    def compute(wide: str, _: str) -> str:
        squares = builder.emit("Mul", [wide, wide])
        return builder.emit("Sqrt", [_reduce(builder, "ReduceSum", squares, axes, keepdims)])

    _through_float(builder, node, source, compute)


@handles("ReduceLogSum")
def _log_sum(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes, keepdims = _read(builder, node)

    def compute(wide: str, _: str) -> str:
        return builder.emit("Log", [_reduce(builder, "ReduceSum", wide, axes, keepdims)])

    _through_float(builder, node, builder.value_name(node.input[0]), compute)


@handles("ReduceLogSumExp")
def _log_sum_exp(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes, keepdims = _read(builder, node)

    def compute(wide: str, dtype: str) -> str:
        if axes is None:
            return builder.emit("Log", [builder.emit("Exp", [wide])])
        # The largest is taken out first, so that nothing overflows; kept finite, as inf - inf is none.
        largest = _reduce(builder, "ReduceMax", wide, axes, 1)
        bounds = {"low": -_LARGEST[dtype], "high": _LARGEST[dtype]}
        pivot = builder.emit("Clip", [largest], bounds)
        grown = builder.emit("Exp", [builder.emit("Sub", [wide, pivot])])
        total = builder.emit("Log", [_reduce(builder, "ReduceSum", grown, axes, keepdims)])
        if not keepdims:
            shape = builder.graph.values[total].shape
            pivot = builder.emit_shaped("Reshape", pivot, shape)
        return builder.emit("Add", [total, pivot])

    _through_float(builder, node, builder.value_name(node.input[0]), compute)


@handles("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    power = 2
    if node.op_type == "GlobalLpPool":
        power = int(builder.attributes({"p": 2})["p"])
    else:
        builder.attributes({})
    value = builder.value(node.input[0])
    axes = tuple(range(2, len(value.shape)))
    if not axes:
        raise builder.refuse(f"needs dimensions behind batch and channels, has {value}")
    if node.op_type != "GlobalLpPool":
        op = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
        builder.emit(op, [value.name], {"axes": axes, "keepdims": 1}, node.output[0])
        return
    lp_norm(builder, node, value.name, axes, power, node.output[0])


@handles("LpPool")
def _lp_pool(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    places = {"auto_pad": b"NOTSET", "dilations": None, "kernel_shape": None, "pads": None, "strides": None}
    found = builder.attributes({**places, "ceil_mode": 0, "p": 2})
    value = builder.value(node.input[0])
    where = geometry(builder, found, value.shape[2:], found["kernel_shape"] or ())
    windows = builder.emit("Windows", [value.name], where.attributes())
    rank = len(builder.graph.values[windows].shape)
    norm = lp_norm(builder, node, windows, (rank - 1,), int(found["p"]))
    # (batch, positions..., channels, 1) to (batch, channels, positions...)
    flat = builder.emit_shaped("Reshape", norm, builder.graph.values[norm].shape[:-1])
    builder.emit("Transpose", [flat], {"perm": (0, rank - 2, *range(1, rank - 2))}, node.output[0])


def lp_norm(
    builder: OnnxBuilder,
    node: onnx.NodeProto,
    source: str,
    axes: tuple[int, ...],
    power: int,
    output: str | None = None,
) -> str:
    """Emit ``(sum |x|**power)**(1 / power)`` over axes, which are kept as 1."""
    if power < 1:
        raise builder.refuse(f"attribute p={power} is not supported; it must be at least 1")
    attributes: dict[str, Any] = {"axes": axes, "keepdims": 1}
    magnitude = builder.emit("Abs", [source]) if power != 2 else source
    if power == 1:
        return builder.emit("ReduceSum", [magnitude], attributes, output)
    if power == 2:
        total = builder.emit("ReduceSum", [builder.emit("Mul", [source, source])], attributes)
        return builder.emit("Sqrt", [total], output=output)
    dtype = builder.graph.values[source].dtype
    powers = builder.emit("Pow", [magnitude, _scalar(builder, node, float(power), dtype)])
    total = builder.emit("ReduceSum", [powers], attributes)
    return builder.emit("Pow", [total, _scalar(builder, node, 1.0 / power, dtype)], output=output)
