"""Arithmetic on shapes, as exporters write it: computed reshapes, factors from sizes, ranges, filled arrays."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from rerank_engine.dimensions import Dim, product

from .growing import DoesNotFit, Growing, Tensor, part


def _size_of(m: Growing, source: Tensor, axis: int, *, scalar: bool = True) -> Tensor:
    """One entry of a shape, in one of the forms that exporters write."""
    sizes = m.add("Shape", [source], [source.rank], "int64", bound=1e3)
    m.forget(sizes)
    if m.chance(0.5):
        index = m.constant(np.int64(m.signed(axis, source.rank)).reshape(() if scalar else (1,)))
        found = m.add("Gather", [sizes, index], [] if scalar else [1], "int64", bound=1e3)
    else:
        if m.opset < 10:
            cut = m.add("Slice", [sizes], [1], "int64", bound=1e3, starts=[axis], ends=[axis + 1])
        else:
            places = [m.integers(axis), m.integers(axis + 1), m.integers(0)]
            cut = m.add("Slice", [sizes, *places], [1], "int64", bound=1e3)
        m.forget(cut)
        found = m.squeezed("Squeeze", cut, [0], []) if scalar else cut
    m.forget(found)
    return found


@part(3)
def computed_reshape(m: Growing) -> None:
    """Reshape to a list that is joined of entries of the shape and numbers."""
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    entries: list[Tensor | str] = []
    dims: list[int | Dim] = list(source.shape)
    if source.rank > 1 and m.chance(0.5):
        at = m.integer(0, source.rank - 2)
        left, right = (_size_of(m, source, axis, scalar=False) for axis in (at, at + 1))
        both = m.add("Mul", [left, right], [1], "int64", bound=1e3)
        m.forget(both)
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
        entries = [
            both if axis == at else _size_of(m, source, axis if axis < at else axis + 1, scalar=False)
            for axis in range(len(dims))
        ]
    else:
        for axis in range(source.rank):
            form = m.one_of(["size", "size", "number"])
            if form == "size" or isinstance(dims[axis], Dim):
                entry = _size_of(m, source, axis)
                flat = m.squeezed("Unsqueeze", entry, [0], [1])
                m.forget(flat)
                entries.append(flat)
            else:
                number = dims[axis]
                assert isinstance(number, int)
                entries.append(m.integers(number))
        if m.chance(0.5):
            entries.insert(m.integer(0, len(entries)), "")
            at = entries.index("")
            entries[at] = m.integers(1)
            dims.insert(at, 1)
        elif m.chance(0.5):
            entries[m.integer(0, len(entries) - 1)] = m.integers(-1)
    target = m.add("Concat", entries, [len(entries)], "int64", bound=1e3, axis=0)
    m.forget(target)
    if 0 in dims or 0 in source.shape:
        raise DoesNotFit
    m.add("Reshape", [source, target], dims, bound=source.bound)


@part(3)
def size_as_factor(m: Growing) -> None:
    """Divide by the number of rows, or by the root of the width."""
    source = m.pick_float()
    other = m.pick(lambda tensor: tensor.rank > 0)
    size = _size_of(m, other, m.axis(other))
    number = m.as_float(size)
    m.forget(number)
    if m.chance(0.4):
        number = m.add("Sqrt", [number], [], bound=30.0)
        m.forget(number)
    one = m.constant(np.float32(1).reshape(()))
    safe = m.add("Add", [number, one], [], bound=50.0)
    m.forget(safe)
    m.add(m.one_of(["Div", "Mul"]), [source, safe], source.shape, bound=source.bound * 50)


@part(2)
def positions(m: Growing) -> None:
    """The numbers 0, 1, ... along a dimension, as ids or as floats."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)
    size = _size_of(m, source, axis)
    zero, one = m.constant(np.int64(0).reshape(())), m.constant(np.int64(1).reshape(()))
    numbers = m.add("Range", [zero, size, one], [source.shape[axis]], "int64", bound=50.0, below=source.shape[axis])
    if m.chance(0.5):
        m.as_float(numbers)


@part(3)
def filled(m: Growing) -> None:
    """An array of one number in the shape of a value."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    sizes = m.add("Shape", [source], [source.rank], "int64", bound=1e3)
    m.forget(sizes)
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    m.add("ConstantOfShape", [sizes], source.shape, bound=1.0, value=value)


@part(2)
def counted(m: Growing) -> None:
    """The number of elements, as a value to compute with."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    count = m.add("Size", [source], [], "int64", bound=1e5)
    m.forget(count)
    m.add("Add", [m.as_float(count), m.constant(np.float32(0.5).reshape(()))], [], bound=1e5)


@part(2)
def size_arithmetic(m: Growing) -> None:
    """Sums, products and whole quotients of sizes become the length of a range."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)
    size: Tensor = _size_of(m, source, axis)
    length: int | Dim = source.shape[axis]
    for _ in range(m.integer(1, 3)):
        op, number = m.one_of([("Add", 1), ("Add", 2), ("Mul", 2), ("Mul", 3)])
        size = m.add(op, [size, m.constant(np.int64(number).reshape(()))], [], "int64", bound=1e3)
        m.forget(size)
        length = length + number if op == "Add" else length * number
    if product([length]) == 0:
        raise DoesNotFit
    flat = m.squeezed("Unsqueeze", size, [0], [1])
    m.forget(flat)
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    ones = m.add("ConstantOfShape", [flat], [length], bound=1.0, value=value)
    m.add("CumSum", [ones, m.constant(np.int64(0).reshape(()))], [length], bound=200.0)
