"""Matrix products, convolutions, pooling, quantised products."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from rerank_engine.dimensions import Dim

from .growing import DoesNotFit, Growing, Tensor, fixed, joined, part


@part(8)
def dense(m: Growing) -> None:
    source = m.small(m.pick_float(lambda tensor: tensor.rank > 0), 30.0)
    inner = source.shape[-1]
    if not isinstance(inner, int):
        raise DoesNotFit
    columns = m.one_of([1, 2, 3, 8, 17])
    weight = m.floats([inner, columns], 0.4)
    shape = [*source.shape[:-1], columns]
    made = m.add("MatMul", [source, weight], shape, bound=source.bound * inner)
    if m.chance(0.6):
        made = m.add("Add", [made, m.floats([columns])], shape, bound=made.bound + 3)
        if m.chance(0.6):
            m.add(m.one_of(["Relu", "Sigmoid", "Tanh", "LeakyRelu"]), [made], shape, bound=made.bound)


@part(5)
def gemm(m: Growing) -> None:
    source = m.small(m.pick_float(lambda tensor: tensor.rank == 2), 30.0)
    turned = m.chance(0.25)
    rows, inner = source.shape[::-1] if turned else source.shape
    columns: int | Dim
    if isinstance(inner, int) and m.chance(0.7):
        columns, other_turned = m.one_of([1, 3, 5, 16]), m.integer(0, 1)
        assert isinstance(columns, int)
        right = m.floats([columns, inner] if other_turned else [inner, columns], 0.4)
    else:
        right = m.small(m.pick_float(lambda tensor: tensor.rank == 2 and inner in tensor.shape), 30.0)
        other_turned = int(right.shape[0] != inner)
        columns = right.shape[0] if other_turned else right.shape[1]
    extra: dict[str, Any] = {"transA": int(turned), "transB": other_turned}
    inputs: list[Tensor] = [source, right]
    if m.opset < 11 or m.chance(0.7):
        shapes = [(), (1,), (1, 1)]
        if isinstance(columns, int):
            shapes += [(columns,), (1, columns)]
        if isinstance(rows, int):
            shapes += [(rows, 1)]
        inputs.append(m.floats(m.one_of(shapes)))
    if m.chance(0.4):
        extra |= {"alpha": m.one_of([0.5, 2.0, -1.0]), "beta": m.one_of([0.5, 1.0, 0.0])}
    m.add("Gemm", inputs, [rows, columns], bound=min(1e4, source.bound * right.bound * 60), **extra)


@part(5)
def two_computed(m: Growing) -> None:
    """Scores of rows against rows, or a weighted sum of rows."""
    left = m.small(m.pick_float(lambda tensor: tensor.rank >= 2), 30.0)
    form = m.one_of(["self", "other", "sum"])
    if form == "self":
        order = [*range(left.rank - 2), left.rank - 1, left.rank - 2]
        turned = m.add("Transpose", [left], [left.shape[axis] for axis in order], bound=left.bound, perm=order)
        pair = [left, turned] if m.chance(0.5) else [turned, left]
    elif form == "other":
        right = m.pick_float(
            lambda tensor: (
                tensor.rank >= 2
                and tensor.shape[-1] == left.shape[-1]
                and joined(tensor.shape[:-2], left.shape[:-2]) is not None
            )
        )
        right = m.small(right, 30.0)
        order = [*range(right.rank - 2), right.rank - 1, right.rank - 2]
        pair = [left, m.add("Transpose", [right], [right.shape[axis] for axis in order], bound=right.bound, perm=order)]
    else:
        right = m.pick_float(
            lambda tensor: (
                tensor.rank >= 2
                and tensor.shape[-2] == left.shape[-1]
                and joined(tensor.shape[:-2], left.shape[:-2]) is not None
            )
        )
        pair = [left, m.small(right, 30.0)]
    batch = joined(pair[0].shape[:-2], pair[1].shape[:-2])
    assert batch is not None
    shape = [*batch, pair[0].shape[-2], pair[1].shape[-1]]
    m.add("MatMul", pair, shape, bound=pair[0].bound * pair[1].bound * 50)


@part(2)
def vector_product(m: Growing) -> None:
    matrix = m.small(m.pick_float(lambda tensor: tensor.rank >= 2), 30.0)
    left = m.chance(0.5)
    size = matrix.shape[-2] if left else matrix.shape[-1]
    vectors = [tensor for tensor in m.tensors if tensor.is_float and tensor.shape == (size,) and tensor.bound <= 30]
    vector: Tensor = m.one_of(vectors) if vectors else m.floats(fixed([size]), 0.4)
    shape = [*matrix.shape[:-2], matrix.shape[-1]] if left else list(matrix.shape[:-1])
    m.add("MatMul", [vector, matrix] if left else [matrix, vector], shape, bound=matrix.bound * vector.bound * 50)


@part(6)
def einsum(m: Growing) -> None:
    count = m.one_of([1, 2, 2, 2, 3])
    operands: list[Tensor] = []
    sizes: dict[str, int | Dim] = {}
    subscripts: list[str] = []
    for _ in range(count):
        known = [tensor for tensor in m.tensors if tensor.is_float and tensor.rank <= 3]
        operand = m.small(m.one_of(known), 5.0)
        text = ""
        for dim in operand.shape:
            same = [letter for letter, size in sizes.items() if size == dim and letter not in text]
            if same and m.chance(0.75):
                letter = m.one_of(same)
            else:
                letter = next(letter for letter in string.ascii_lowercase if letter not in sizes)
                sizes[letter] = dim
            text += letter
        operands.append(operand)
        subscripts.append(text)
    letters = sorted(sizes)
    result = "".join(letter for letter in m.random.permutation(letters).tolist() if m.chance(0.5)) if letters else ""
    equation = f"{','.join(subscripts)}->{result}"
    if m.chance(0.15):
        everything = "".join(subscripts)
        result = "".join(sorted(letter for letter in set(everything) if everything.count(letter) == 1))
        equation = ",".join(subscripts)
    elif m.chance(0.2):
        equation = equation.replace(",", " , ")
    m.add("Einsum", operands, [sizes[letter] for letter in result], bound=1e3, equation=equation)


@part(5)
def convolution(m: Growing) -> None:
    source = m.small(
        m.pick_float(lambda tensor: tensor.rank in (3, 4) and isinstance(tensor.shape[1], int) and tensor.shape[1] > 0),
        30.0,
    )
    (channels,) = fixed(source.shape[1:2])
    groups = m.one_of([factor for factor in range(1, channels + 1) if channels % factor == 0])
    features = groups * m.integer(1, 3)
    kernel: list[int] = []
    strides: list[int] = []
    dilations: list[int] = []
    before: list[int] = []
    after: list[int] = []
    sizes: list[int | Dim] = []
    for dim in source.shape[2:]:
        width, dilation = m.integer(1, 3), m.integer(1, 2)
        stride = m.integer(1, 2) if isinstance(dim, int) else 1
        low, high = m.integer(0, 1), m.integer(0, 2)
        span = dim + (low + high - dilation * (width - 1) - 1)
        if isinstance(span, int) and span < 0:
            raise DoesNotFit
        sizes.append(span // stride + 1 if isinstance(span, int) else span + 1)
        for entries, entry in zip(
            (kernel, strides, dilations, before, after), (width, stride, dilation, low, high), strict=True
        ):
            entries.append(entry)
    weight = m.floats([features, channels // groups, *kernel], 0.4)
    inputs = [source, weight, m.floats([features])] if m.chance(0.5) else [source, weight]
    geometry: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations, "pads": [*before, *after]}
    m.add("Conv", inputs, [source.shape[0], features, *sizes], bound=source.bound * 30, **geometry)


@part(4)
def pooling(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank in (3, 4))
    largest = m.chance(0.5)
    kernel, strides, sizes = [], [], []
    for dim in source.shape[2:]:
        width = m.integer(1, 3)
        stride = m.integer(1, 2) if isinstance(dim, int) else 1
        span = dim - width
        if isinstance(span, int) and span < 0:
            raise DoesNotFit
        sizes.append(span // stride + 1 if isinstance(span, int) else span + 1)
        kernel.append(width)
        strides.append(stride)
    op = "MaxPool" if largest else "AveragePool"
    m.add(op, [source], [*source.shape[:2], *sizes], bound=source.bound, kernel_shape=kernel, strides=strides)


@part(2)
def global_pooling(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank >= 3)
    shape = [*source.shape[:2], *(1 for _ in source.shape[2:])]
    m.add(m.one_of(["GlobalAveragePool", "GlobalMaxPool"]), [source], shape, bound=source.bound)


@part(4)
def quantised(m: Growing) -> None:
    """To eight bits and back; sometimes a product in between."""
    source = m.small(m.pick_float(lambda tensor: tensor.rank > 0), 8.0)
    dtype = m.one_of(["int8", "uint8"])
    scale = m.constant(np.float32(0.06).reshape(()))
    zero = m.constant(m.integer(0, 20), dtype)
    form = m.one_of(["fixed", "dynamic"])
    inner = source.shape[-1]
    if form == "fixed":
        small = m.add("QuantizeLinear", [source, scale, zero], source.shape, dtype, bound=255.0)
        m.forget(small)
        m.add("DequantizeLinear", [small, scale, zero], source.shape, bound=16.0)
        return
    if source.rank < 2 or not isinstance(inner, int) or 0 in source.shape:
        raise DoesNotFit
    small, own_scale, own_zero = m.add_many(
        "DynamicQuantizeLinear", [source], [("uint8", source.shape), ("float32", ()), ("uint8", ())], bound=255.0
    )
    m.forget(small)
    m.forget(own_zero)
    weight = m.constant(m.random.integers(-100, 100, (inner, 3)), "int8")
    shape = [*source.shape[:-1], 3]
    total = m.add("MatMulInteger", [small, weight, own_zero, m.constant(3, "int8")], shape, "int32", bound=1e6)
    m.forget(total)
    m.add("Mul", [m.as_float(total), own_scale], shape, bound=1e4)


@part(4)
def whole_number_product(m: Growing) -> None:
    """A matrix product of integers, which ONNX Runtime has for two of the dtypes."""
    if m.opset < 9:
        raise DoesNotFit
    source = m.pick(lambda tensor: tensor.dtype in ("int64", "int32") and tensor.rank > 1 and tensor.bound < 1e6)
    (inner,) = fixed(source.shape[-1:])
    weight = m.constant(m.random.integers(-9, 10, (inner, 3)), source.dtype)
    m.add("MatMul", [source, weight], [*source.shape[:-1], 3], source.dtype, bound=source.bound * 9 * max(1, inner))


@part(3)
def normed_convolution(m: Growing) -> None:
    """Convolution, normalisation with constants, activation: passes make one of them."""
    source = m.small(m.pick_float(lambda tensor: tensor.rank == 3 and isinstance(tensor.shape[1], int)), 10.0)
    (channels,) = fixed(source.shape[1:2])
    if not channels:
        raise DoesNotFit
    shape = [source.shape[0], 4, source.shape[2]]
    made = m.add("Conv", [source, m.floats([4, channels, 3], 0.4)], shape, bound=source.bound * 30, pads=[1, 1])
    scale, shift, mean = (m.floats([4]) for _ in range(3))
    variance = m.constant(m.random.uniform(0.5, 2, 4), "float32")
    normal = m.add("BatchNormalization", [made, scale, shift, mean, variance], shape, bound=made.bound * 6)
    m.add("Relu", [normal], shape, bound=normal.bound)
