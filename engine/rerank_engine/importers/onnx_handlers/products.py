"""Matrix products: MatMul, Gemm and Einsum."""

from __future__ import annotations

import itertools
import string
from typing import TYPE_CHECKING

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import DTYPES, Dim, Shape
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles, inputs
from rerank_engine.ops.einsum import split_equation

if TYPE_CHECKING:
    import onnx


@handles("MatMul")
def _matmul(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    builder.attributes({})
    left, right = inputs(builder, node)
    matrix_product(builder, left, right, node.output[0])


def matrix_product(builder: OnnxBuilder, left: str, right: str, output: str | None = None) -> str:
    """Emit a product of graph values as ``MatMul`` of ONNX and NumPy means it, vectors included."""
    shape_left, shape_right = (builder.graph.values[name].shape for name in (left, right))
    if not shape_left or not shape_right:
        raise builder.refuse("a number without dimensions is no matrix")
    if len(shape_left) > 1 and len(shape_right) > 1:
        return builder.emit("MatMul", [left, right], output=output)
    # A vector is a row on the left and a column on the right; its dimension of one goes away again.
    if len(shape_left) == 1:
        left = builder.emit_shaped("Reshape", left, (1, *shape_left))
    if len(shape_right) == 1:
        right = builder.emit_shaped("Reshape", right, (*shape_right, 1))
    made = builder.emit("MatMul", [left, right])
    shape = list(builder.graph.values[made].shape)
    if len(shape_right) == 1:
        del shape[-1]
    if len(shape_left) == 1:
        del shape[-1 if len(shape_right) == 1 else -2]
    return builder.emit_shaped("Reshape", made, shape, output)


@handles("Gemm")
def _gemm(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    understood = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    found = builder.attributes(understood)
    names = [builder.value_name(name) for name in node.input[:3] if name]
    values = [builder.graph.values[name] for name in names]
    if any(len(value.shape) != 2 for value in values[:2]):
        raise builder.refuse(f"needs matrices, has {values[0]} and {values[1]}")
    left, right = (
        _turned(builder, name) if found[key] else name
        for name, key in zip(names[:2], ("transA", "transB"), strict=True)
    )
    dtype = values[0].dtype
    right = _scaled(builder, right, found["alpha"], dtype)
    if len(names) == 2 or found["beta"] == 0:
        builder.emit("MatMul", [left, right], output=node.output[0])
        return
    made = builder.emit("MatMul", [left, right])
    rows, columns = builder.graph.values[made].shape
    bias = values[2].shape
    # A larger bias would widen the product instead.
    if len(bias) > 2 or any(own not in (1, dim) for own, dim in zip(bias[::-1], (columns, rows), strict=False)):
        raise builder.refuse(f"bias {values[2]} does not fit the product {builder.graph.values[made]}")
    added = _scaled(builder, names[2], found["beta"], dtype)
    builder.emit("Add", [made, added], output=node.output[0])


def _turned(builder: OnnxBuilder, name: str) -> str:
    """The transposed matrix; a constant is turned at once, so that a weight is a weight from the start."""
    array = builder.graph.constants.get(name)
    if array is not None:
        return builder.own_constant(f"{name}.turned", np.asarray(array.T, order="C"))
    return builder.emit("Transpose", [name], {"perm": (1, 0)})


def _scaled(builder: OnnxBuilder, name: str, factor: float, dtype: str) -> str:
    """A value times a factor; a constant is multiplied at once."""
    if factor == 1.0:
        return name
    if not dtype.startswith("float") and factor != int(factor):
        raise builder.refuse(f"a factor of {factor} for {dtype}")
    number = np.array(factor, DTYPES[dtype])
    array = builder.graph.constants.get(name)
    if array is not None:
        return builder.own_constant(f"{name}.scaled", np.asarray(array * number, DTYPES[dtype], order="C"))
    return builder.emit("Mul", [name, builder.own_constant(f"{name}.factor", number)])


@handles("Einsum")
def _einsum(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    equation = builder.attributes({"equation": None})["equation"].decode().replace(" ", "")
    names = inputs(builder, node)
    shapes = [builder.graph.values[name].shape for name in names]
    operands, result = _spell_out(builder, equation, shapes)
    names, operands = _without_ones(builder, names, operands, shapes)
    if len(names) == 2 and _as_product(builder, names, operands, result, node.output[0]):
        return
    builder.emit("Einsum", names, {"equation": f"{','.join(operands)}->{result}"}, node.output[0])


def _spell_out(builder: OnnxBuilder, equation: str, shapes: list[Shape]) -> tuple[list[str], str]:
    """Subscripts with letters instead of an ellipsis, and with the result that an implicit form means."""
    operands, result = split_equation(equation)
    if len(operands) != len(shapes):
        raise builder.refuse(f"equation {equation!r} has {len(operands)} operands for {len(shapes)} inputs")
    free = (letter for letter in string.ascii_letters if letter not in equation)
    widths = []
    for subscripts, shape in zip(operands, shapes, strict=True):
        width = len(shape) - len(subscripts.replace("...", ""))
        if width < 0 or ("..." not in subscripts and width) or subscripts.count(".") not in (0, 3):
            raise builder.refuse(f"subscripts {subscripts!r} of {equation!r} do not fit {len(shape)} dimensions")
        widths.append(width)
    letters = "".join(itertools.islice(free, max(widths, default=0)))
    if len(letters) < max(widths, default=0):
        raise builder.refuse(f"equation {equation!r} needs more letters than there are")
    spelled = [
        subscripts.replace("...", letters[len(letters) - width :])
        for subscripts, width in zip(operands, widths, strict=True)
    ]
    if "->" in equation:
        if letters and "..." not in result:
            raise builder.refuse(f"the result of equation {equation!r} leaves the ellipsis out")
        result = result.replace("...", letters)
    else:
        once = sorted(letter for letter in set("".join(operands)) - {"."} if "".join(operands).count(letter) == 1)
        result = letters + "".join(once)
    if not all(letter.isalpha() for letter in "".join(spelled) + result):
        raise builder.refuse(f"equation {equation!r} has a sign that is no letter")
    return spelled, result


def _without_ones(
    builder: OnnxBuilder, names: list[str], operands: list[str], shapes: list[Shape]
) -> tuple[list[str], list[str]]:
    """Drop the dimensions of one that another operand repeats."""
    sizes: dict[str, int | Dim] = {}
    for subscripts, shape in zip(operands, shapes, strict=True):
        for letter, dim in zip(subscripts, shape, strict=True):
            if sizes.get(letter, 1) == 1:
                sizes[letter] = dim
            elif dim not in (1, sizes[letter]):
                raise builder.refuse(f"subscript {letter!r} stands for {sizes[letter]} and for {dim}")
    kept_names, kept_operands = [], []
    for name, subscripts, shape in zip(names, operands, shapes, strict=True):
        kept = [index for index, letter in enumerate(subscripts) if shape[index] == sizes[letter]]
        if len(kept) < len(subscripts):
            name = builder.emit_shaped("Reshape", name, [shape[index] for index in kept])
        kept_names.append(name)
        kept_operands.append("".join(subscripts[index] for index in kept))
    return kept_names, kept_operands


def _as_product(builder: OnnxBuilder, names: list[str], operands: list[str], result: str, output: str) -> bool:
    """Emit a sum over subscripts that both operands have as a (batched) matrix product; False when it is none."""
    left, right = operands
    if len(set(left)) != len(left) or len(set(right)) != len(right) or len(set(result)) != len(result):
        return False
    if not set(result) <= set(left) | set(right):
        return False
    batch = [letter for letter in result if letter in left and letter in right]
    inner = [letter for letter in left if letter in right and letter not in result]
    rows = [letter for letter in result if letter in left and letter not in right]
    columns = [letter for letter in result if letter in right and letter not in left]
    if set(batch + inner + rows) != set(left) or set(batch + inner + columns) != set(right) or not inner:
        return False
    sizes = dict(
        zip(left + right, builder.graph.values[names[0]].shape + builder.graph.values[names[1]].shape, strict=True)
    )

    def arranged(name: str, own: str, first: list[str], second: list[str]) -> str:
        order = tuple(own.index(letter) for letter in batch + first + second)
        if order != tuple(range(len(own))):
            name = builder.emit("Transpose", [name], {"perm": order})
        shape = (
            *(sizes[letter] for letter in batch),
            product(sizes[letter] for letter in first),
            product(sizes[letter] for letter in second),
        )
        return name if builder.graph.values[name].shape == shape else builder.emit_shaped("Reshape", name, shape)

    made = builder.emit("MatMul", [arranged(names[0], left, rows, inner), arranged(names[1], right, inner, columns)])
    spread = batch + rows + columns
    shape = tuple(sizes[letter] for letter in spread)
    order = tuple(spread.index(letter) for letter in result)
    if order == tuple(range(len(spread))):
        builder.emit_shaped("Reshape", made, shape, output)
        return True
    spread_out = builder.emit_shaped("Reshape", made, shape)
    builder.emit("Transpose", [spread_out], {"perm": order}, output)
    return True
