"""One handler for each ONNX operator that is understood: which attributes, which forms, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import Dim, elements_per_candidate, is_per_candidate
from rerank_engine.importers.onnx import _ONNX_DTYPES, OnnxBuilder
from rerank_engine.importers.shapes import ShapeValue, divide, equal, multiply, resolve_reshape

if TYPE_CHECKING:
    import onnx

Handler = Callable[[OnnxBuilder, "onnx.NodeProto"], None]

HANDLERS: dict[str, Handler] = {}


def _handles(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def _inputs(builder: OnnxBuilder, node: onnx.NodeProto) -> list[str]:
    return [builder.value_name(name) for name in node.input]


# --- elementwise -------------------------------------------------------------------------------------------


_ENTRYWISE: dict[str, Callable[[int | Dim, int | Dim], int | Dim | None]] = {
    "Mul": multiply,
    "Div": divide,
    "Add": lambda a, b: a + b if isinstance(a, int) and isinstance(b, int) else None,
    "Sub": lambda a, b: a - b if isinstance(a, int) and isinstance(b, int) else None,
}


@_handles(
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "PRelu",
)
def _two_inputs(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    left, right = (builder.shapes.get(name) for name in node.input)
    if left is not None or right is not None:
        known = [builder.shape_value(name) for name in node.input]
        if known[0] is not None and known[1] is not None and node.op_type in (*_ENTRYWISE, "Equal"):
            if _shape_entrywise(builder, node, known[0], known[1]):
                return
            raise builder.refuse("this arithmetic on the number of candidates is not supported")
    builder.emit(node.op_type, _inputs(builder, node), output=node.output[0])


def _shape_entrywise(builder: OnnxBuilder, node: onnx.NodeProto, left: ShapeValue, right: ShapeValue) -> bool:
    """Compute on known integers; False when the result is none of ours."""
    if left.dtype != right.dtype:
        raise builder.refuse(f"inputs differ in dtype: {left.dtype} and {right.dtype}")
    count = max(len(left.entries), len(right.entries))
    pairs = list(zip(_repeat(left, count), _repeat(right, count), strict=True))
    scalar = left.is_scalar and right.is_scalar
    if node.op_type == "Equal":
        answers = [equal(a, b) for a, b in pairs]
        if None in answers:
            return False
        array = np.array(answers, dtype=np.bool_)
        builder.constant(node.output[0], array.reshape(()) if scalar else array)
        return True
    entries = [_ENTRYWISE[node.op_type](a, b) for a, b in pairs]
    if any(entry is None for entry in entries):
        return False
    known = tuple(entry for entry in entries if entry is not None)
    builder.shapes[node.output[0]] = ShapeValue(known, scalar, left.dtype)
    return True


def _repeat(value: ShapeValue, count: int) -> tuple[int | Dim, ...]:
    return value.entries * count if len(value.entries) == 1 else value.entries


@_handles("Abs", "Exp", "Neg", "Not", "Relu", "Sigmoid", "Sqrt", "Tanh")
def _one_input(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.emit(node.op_type, _inputs(builder, node), output=node.output[0])


@_handles("Max", "Min", "Sum")
def _variadic(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    names = _inputs(builder, node)
    op = "Add" if node.op_type == "Sum" else node.op_type
    if len(names) == 1:
        builder.emit("Identity", names, output=node.output[0])
        return
    result = names[0]
    for name in names[1:-1]:
        result = builder.emit(op, [result, name])
    builder.emit(op, [result, names[-1]], output=node.output[0])


@_handles("LeakyRelu")
def _leaky_relu(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    alpha = builder.attributes({"alpha": 0.01})["alpha"]
    builder.emit("LeakyRelu", _inputs(builder, node), {"alpha": float(alpha)}, node.output[0])


_LARGEST = float(np.finfo(np.float32).max)
"""Bounds of Clip that are not given: ONNX takes the finite range, so that infinities become finite."""


@_handles("Clip")
def _clip(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 11:
        found = builder.attributes({"min": -_LARGEST, "max": _LARGEST})
        low, high = float(found["min"]), float(found["max"])
    else:
        builder.attributes({})
        low, high = -_LARGEST, _LARGEST
        for index, name in enumerate(node.input[1:]):
            if name:
                array = builder.array(name)
                if array is None or array.size != 1:
                    raise builder.refuse("bounds must be constant scalars")
                low, high = (float(array.item()), high) if index == 0 else (low, float(array.item()))
    builder.emit("Clip", [builder.value_name(node.input[0])], {"low": low, "high": high}, node.output[0])


@_handles("Pow")
def _pow(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    exponent = builder.array(node.input[1])
    base = builder.value_name(node.input[0])
    if exponent is None or exponent.size != 1 or float(exponent.item()) not in (0.5, 1.0, 2.0):
        raise builder.refuse("only the constant exponents 0.5, 1 and 2 are supported")
    if exponent.ndim > len(builder.graph.values[base].shape):
        raise builder.refuse(f"an exponent of shape {exponent.shape} would add dimensions")
    power = float(exponent.item())
    if power == 2.0:
        builder.emit("Mul", [base, base], output=node.output[0])
    else:
        builder.emit("Sqrt" if power == 0.5 else "Identity", [base], output=node.output[0])


@_handles("Where")
def _where(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    condition = builder.array(node.input[0])
    chosen = [builder.shape_value(name) for name in node.input[1:]]
    yes_no = [value for value in chosen if value is not None]
    if condition is not None and condition.ndim <= 1 and len(yes_no) == 2 and yes_no[0].dtype == yes_no[1].dtype:
        count = max(condition.size, *(len(value.entries) for value in yes_no))
        picks = np.broadcast_to(condition.reshape(-1), count)
        pairs = zip(picks, _repeat(yes_no[0], count), _repeat(yes_no[1], count), strict=True)
        entries = tuple(yes if pick else no for pick, yes, no in pairs)
        scalar = condition.ndim == 0 and all(value.is_scalar for value in yes_no)
        builder.shapes[node.output[0]] = ShapeValue(entries, scalar, yes_no[0].dtype)
        return
    builder.emit("Where", _inputs(builder, node), output=node.output[0])


@_handles("Cast")
def _cast(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    to = builder.attributes({"to": 0, "saturate": 1})["to"]
    if to not in _ONNX_DTYPES:
        raise builder.refuse(f"a cast to ONNX type {to} is not supported")
    known = builder.shapes.get(node.input[0])
    if known is not None and _ONNX_DTYPES[to] in ("int32", "int64"):
        builder.shapes[node.output[0]] = replace(known, dtype=_ONNX_DTYPES[to])
        return
    builder.emit("Cast", _inputs(builder, node), {"to": _ONNX_DTYPES[to]}, node.output[0])


@_handles("Identity", "Dropout")
def _identity(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if node.op_type == "Dropout":
        builder.attributes({"ratio": 0.5, "seed": 0})
        if len(node.output) > 1 and node.output[1]:
            raise builder.refuse("the mask output is not supported")
        if len(node.input) > 2 and node.input[2]:
            training = builder.array(node.input[2])
            if training is None or training.any():
                raise builder.refuse("training mode is not supported; it must be constant and off")
    else:
        builder.attributes({})
    if node.input[0] in builder.shapes:
        builder.shapes[node.output[0]] = builder.shapes[node.input[0]]
        return
    builder.emit("Identity", [builder.value_name(node.input[0])], output=node.output[0])


# --- constants and shapes ----------------------------------------------------------------------------------


@_handles("Constant")
def _constant(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    from onnx import numpy_helper

    found = builder.attributes(
        {"value": None, "value_float": None, "value_floats": None, "value_int": None, "value_ints": None}
    )
    (value,) = (entry for entry in found.items() if entry[1] is not None)
    if value[0] == "value":
        array = numpy_helper.to_array(value[1])
    else:
        array = np.array(value[1], dtype=np.float32 if "float" in value[0] else np.int64)
    builder.constant(node.output[0], array)


@_handles("ConstantOfShape")
def _constant_of_shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    from onnx import numpy_helper

    fill = builder.attributes({"value": None})["value"]
    number = numpy_helper.to_array(fill).reshape(()) if fill is not None else np.zeros((), np.float32)
    known = builder.shape_value(node.input[0])
    if known is None:
        raise builder.refuse("the shape must be known when the model is converted")
    if number.dtype == np.int64 and len(known.entries) == 1 and isinstance(known.entries[0], int):
        builder.shapes[node.output[0]] = ShapeValue((int(number),) * known.entries[0])
        return
    scalar = builder.own_constant(f"{node.output[0]}/fill", number)
    builder.emit_shaped("Expand", scalar, known.entries, node.output[0])


@_handles("Shape")
def _shape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"start": 0, "end": None})
    builder.shapes[node.output[0]] = ShapeValue(builder.value(node.input[0]).shape[found["start"] : found["end"]])


@_handles("Reshape")
def _reshape(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    allow_zero = bool(builder.attributes({"allowzero": 0})["allowzero"])
    target = builder.shape_value(node.input[1])
    if target is None:
        raise builder.refuse("the target shape must be known when the model is converted")
    if node.input[0] in builder.shapes:
        count = len(builder.shapes[node.input[0]].entries)
        if target.entries in ((-1,), (count,)) or (target.entries == () and count == 1):
            builder.shapes[node.output[0]] = replace(builder.shapes[node.input[0]], is_scalar=not target.entries)
            return
    source = builder.value(node.input[0])
    shape = resolve_reshape(target.entries, source.shape, allow_zero)
    if shape is None:
        raise builder.refuse(f"cannot resolve the target shape {target.entries} for {source}")
    builder.emit_shaped("Reshape", source.name, shape, node.output[0])


@_handles("Flatten")
def _flatten(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 1})["axis"]
    source = builder.value(node.input[0])
    axis = builder.axis(axis, len(source.shape)) if axis != len(source.shape) else axis
    if axis == 0 and is_per_candidate(source.shape):
        raise builder.refuse("flattening the candidates into one row is not supported")
    leading = elements_per_candidate(source.shape[:axis])
    first = Dim("N", leading) if is_per_candidate(source.shape) else leading
    builder.emit_shaped("Reshape", source.name, (first, elements_per_candidate(source.shape[axis:])), node.output[0])


@_handles("Squeeze", "Unsqueeze")
def _squeeze(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axes = _axes(builder, node, since=13)
    squeezing = node.op_type == "Squeeze"
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        if len(known.entries) == 1 and known.is_scalar != squeezing and set(axes) <= {0, -1}:
            builder.shapes[node.output[0]] = replace(known, is_scalar=squeezing)
            return
    source = builder.value(node.input[0])
    shape = list(source.shape)
    if squeezing:
        chosen = [builder.axis(axis, len(shape)) for axis in axes]
        if not axes:
            if is_per_candidate(source.shape):
                raise builder.refuse("without axes, a single candidate would lose its dimension; give axes")
            chosen = [axis for axis, dim in enumerate(shape) if dim == 1]
        if any(shape[axis] != 1 for axis in chosen):
            raise builder.refuse(f"axes {axes} of {source} are not all 1")
        shape = [dim for axis, dim in enumerate(shape) if axis not in chosen]
    else:
        rank = len(shape) + len(axes)
        places = sorted(builder.axis(axis, rank) for axis in axes)
        if len(set(places)) != len(places):
            raise builder.refuse(f"axes {axes} name a dimension twice")
        for axis in places:
            shape.insert(axis, 1)
    builder.emit_shaped("Reshape", source.name, shape, node.output[0])


def _axes(builder: OnnxBuilder, node: onnx.NodeProto, since: int, **defaults: Any) -> list[int]:
    """Axes from the attribute of old opsets or the input of new ones."""
    if builder.opset < since:
        return list(builder.attributes({"axes": [], **defaults})["axes"])
    builder.attributes(defaults)
    return builder.integers(node.input[1], "axes") if len(node.input) > 1 and node.input[1] else []


@_handles("Expand")
def _expand(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    target = builder.shape_value(node.input[1])
    if target is None:
        raise builder.refuse("the target shape must be known when the model is converted")
    source = builder.value(node.input[0])
    rank = max(len(target.entries), len(source.shape))
    wanted = (1,) * (rank - len(target.entries)) + target.entries
    own = (1,) * (rank - len(source.shape)) + source.shape
    shape = [have if want in (1, -1) else want for want, have in zip(wanted, own, strict=True)]
    builder.emit_shaped("Expand", source.name, shape, node.output[0])


@_handles("Concat")
def _concat(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": None})["axis"]
    if any(name in builder.shapes for name in node.input):
        known = [builder.shape_value(name) for name in node.input]
        if all(value is not None for value in known):
            joined = [value for value in known if value is not None]
            if any(value.is_scalar or value.dtype != joined[0].dtype for value in joined) or axis not in (0, -1):
                raise builder.refuse("only vectors of one dtype can be joined, along axis 0")
            entries = tuple(entry for value in joined for entry in value.entries)
            builder.shapes[node.output[0]] = ShapeValue(entries, dtype=joined[0].dtype)
            return
    names = _inputs(builder, node)
    axis = builder.axis(axis, len(builder.graph.values[names[0]].shape))
    builder.emit("Concat", names, {"axis": axis}, node.output[0])


@_handles("Transpose")
def _transpose(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    source = builder.value(node.input[0])
    order = builder.attributes({"perm": None})["perm"]
    perm = tuple(order) if order is not None else tuple(reversed(range(len(source.shape))))
    builder.emit("Transpose", [source.name], {"perm": perm}, node.output[0])


@_handles("Slice")
def _slice(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    if builder.opset < 10:
        found = builder.attributes({"starts": None, "ends": None, "axes": None})
        starts, ends = list(found["starts"]), list(found["ends"])
        axes, steps = found["axes"], [1] * len(starts)
    else:
        builder.attributes({})
        starts, ends = (builder.integers(name, "the range") for name in node.input[1:3])
        axes = builder.integers(node.input[3], "axes") if len(node.input) > 3 and node.input[3] else None
        steps = builder.integers(node.input[4], "steps") if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    axes = list(axes) if axes is not None else list(range(len(starts)))
    if any(step != 1 for step in steps):
        raise builder.refuse(f"steps {steps} are not supported; only 1 is")
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        if len(starts) != 1 or len(ends) != 1 or axes not in ([0], [-1]) or known.is_scalar:
            raise builder.refuse("a shape is cut along its only axis")
        builder.shapes[node.output[0]] = replace(known, entries=known.entries[starts[0] : ends[0]])
        return
    name = builder.value_name(node.input[0])
    if not axes:
        builder.emit("Identity", [name], output=node.output[0])
    for index, (start, end, axis) in enumerate(zip(starts, ends, axes, strict=True)):
        shape = builder.graph.values[name].shape
        axis = builder.axis(axis, len(shape))
        dim = shape[axis]
        if isinstance(dim, Dim):
            raise builder.refuse("cutting the candidate dimension is not supported")
        first, last, _ = slice(start, end).indices(dim)
        attributes = {"axis": axis, "start": first, "stop": max(first, last)}
        name = builder.emit("Slice", [name], attributes, node.output[0] if index == len(axes) - 1 else None)


@_handles("Split")
def _split(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"axis": 0, "split": None, "num_outputs": None})
    source = builder.value(node.input[0])
    axis = builder.axis(found["axis"], len(source.shape))
    dim = source.shape[axis]
    if isinstance(dim, Dim):
        raise builder.refuse("cutting the candidate dimension is not supported")
    sizes = found["split"]
    if len(node.input) > 1 and node.input[1]:
        sizes = builder.integers(node.input[1], "split sizes")
    if found["num_outputs"] not in (None, len(node.output)):
        raise builder.refuse(f"num_outputs={found['num_outputs']} for {len(node.output)} outputs")
    if sizes is None:
        each = -(-dim // len(node.output))
        sizes = [min(each, dim - index * each) for index in range(len(node.output))]
        if builder.opset < 18 and dim % len(node.output):
            raise builder.refuse(f"dimension {dim} does not split into {len(node.output)} equal parts")
    if len(sizes) != len(node.output) or sum(sizes) != dim or min(sizes) < 0:
        raise builder.refuse(f"sizes {list(sizes)} do not split dimension {dim} into {len(node.output)} parts")
    start = 0
    for size, output in zip(sizes, node.output, strict=True):
        builder.emit("Slice", [source.name], {"axis": axis, "start": start, "stop": start + size}, output)
        start += size


@_handles("Gather")
def _gather(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": 0})["axis"]
    if node.input[0] in builder.shapes:
        known = builder.shapes[node.input[0]]
        picks = builder.shape_value(node.input[1])
        if picks is None or any(isinstance(pick, Dim) for pick in picks.entries):
            raise builder.refuse("an index into a shape must be constant")
        chosen = tuple(known.entries[pick] for pick in picks.entries if isinstance(pick, int))
        builder.shapes[node.output[0]] = replace(known, entries=chosen, is_scalar=picks.is_scalar)
        return
    source = builder.value(node.input[0])
    axis = builder.axis(axis, len(source.shape))
    if axis == 0:
        builder.emit("Gather", _inputs(builder, node), output=node.output[0])
        return
    picks = builder.shape_value(node.input[1])
    dim = source.shape[axis]
    if picks is None or len(picks.entries) != 1 or isinstance(dim, Dim) or isinstance(picks.entries[0], Dim):
        raise builder.refuse(f"axis {axis}: only a single constant index is supported beyond axis 0")
    start = picks.entries[0] + dim if picks.entries[0] < 0 else picks.entries[0]
    cut = builder.emit("Slice", [source.name], {"axis": axis, "start": start, "stop": start + 1})
    keep = () if picks.is_scalar else (1,)
    builder.emit_shaped("Reshape", cut, source.shape[:axis] + keep + source.shape[axis + 1 :], node.output[0])


# --- sums, products, normalisation -------------------------------------------------------------------------


@_handles("ReduceSum", "ReduceMean", "ReduceMax")
def _reduce(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    since = 13 if node.op_type == "ReduceSum" else 18
    keep = builder.attributes({"axes": None, "keepdims": 1, "noop_with_empty_axes": 0})
    axes = _axes(builder, node, since, keepdims=1, noop_with_empty_axes=0)
    source = builder.value(node.input[0])
    if not axes:
        if keep["noop_with_empty_axes"]:
            builder.emit("Identity", [source.name], output=node.output[0])
            return
        axes = list(range(len(source.shape)))
    attributes = {
        "axes": tuple(builder.axis(axis, len(source.shape)) for axis in axes),
        "keepdims": int(keep["keepdims"]),
    }
    builder.emit(node.op_type, [source.name], attributes, node.output[0])


@_handles("Softmax")
def _softmax(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    axis = builder.attributes({"axis": -1 if builder.opset >= 13 else 1})["axis"]
    source = builder.value(node.input[0])
    rank = len(source.shape)
    axis = builder.axis(axis, rank)
    if axis == rank - 1:
        builder.emit("Softmax", [source.name], {"axis": axis}, node.output[0])
        return
    trailing = source.shape[axis + 1 :]
    if builder.opset < 13 and prod(dim for dim in trailing if isinstance(dim, int)) != 1:
        raise builder.refuse(f"axis {axis} before opset 13 joins several dimensions")
    order = (*(i for i in range(rank) if i != axis), axis)
    turned = builder.emit("Transpose", [source.name], {"perm": order})
    result = builder.emit("Softmax", [turned], {"axis": rank - 1})
    back = tuple(order.index(i) for i in range(rank))
    builder.emit("Transpose", [result], {"perm": back}, node.output[0])


@_handles("MatMul")
def _matmul(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    builder.emit("MatMul", _inputs(builder, node), output=node.output[0])


@_handles("Gemm")
def _gemm(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"alpha": 1.0, "beta": 1.0, "transB": 0}, only={"transA": 0})
    right = builder.array(node.input[1])
    if right is None or right.ndim != 2:
        raise builder.refuse("the right-hand matrix must be constant")
    weight = (right.T if found["transB"] else right) * np.float32(found["alpha"])
    name = builder.own_constant(f"{node.input[1]}.weight", np.ascontiguousarray(weight, dtype=np.float32))
    left = builder.value_name(node.input[0])
    if len(builder.graph.values[left].shape) != 2:
        raise builder.refuse(f"the left-hand side must be a matrix, is {builder.graph.values[left]}")
    if len(node.input) < 3 or not node.input[2] or found["beta"] == 0:
        builder.emit("MatMul", [left, name], output=node.output[0])
        return
    added = builder.value_name(node.input[2])
    if found["beta"] != 1.0:
        beta = builder.own_constant(f"{node.input[2]}.beta", np.array(found["beta"], np.float32))
        added = builder.emit("Mul", [added, beta])
    product = builder.emit("MatMul", [left, name])
    builder.emit("Add", [product, added], output=node.output[0])


@_handles("BatchNormalization")
def _batch_normalization(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({"epsilon": 1e-5, "momentum": 0.9}, only={"training_mode": 0, "spatial": 1})
    source = builder.value(node.input[0])
    arrays = [builder.array(name) for name in node.input[1:5]]
    if any(array is None for array in arrays):
        raise builder.refuse("scale, bias, mean and variance must be constant")
    if any(builder_output for builder_output in node.output[1:]):
        raise builder.refuse("only the normalised output is supported")
    gain, bias, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    scale = gain / np.sqrt(variance + found["epsilon"])
    if len(source.shape) < 2:
        raise builder.refuse(f"needs (N, C, ...), has {source}")
    tail = (1,) * (len(source.shape) - 2)
    factor = builder.own_constant(f"{node.output[0]}/scale", scale.astype(np.float32).reshape(-1, *tail))
    offset = (bias - mean * scale).astype(np.float32).reshape(-1, *tail)
    shift = builder.own_constant(f"{node.output[0]}/shift", offset)
    scaled = builder.emit("Mul", [source.name, factor])
    builder.emit("Add", [scaled, shift], output=node.output[0])
