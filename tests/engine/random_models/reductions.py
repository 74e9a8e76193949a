"""Sums, means, maxima and norms over any axes, softmax and normalisations."""

from __future__ import annotations

import numpy as np

from rerank_engine.dimensions import Dim

from .growing import DoesNotFit, Growing, fixed, part


@part(9)
def reduction(m: Growing) -> None:
    source = m.pick_float()
    op = m.one_of(
        [
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
        ]
    )
    source = m.small(source, 50.0)
    axes = m.some_of(range(source.rank))
    m.reduced(op, source, axes, m.chance(0.5), bound=source.bound * source.bound * 50)


@part(2)
def reduction_of_positive(m: Growing) -> None:
    source = m.positive(m.small(m.pick_float(), 3.0), 0.1)
    m.reduced("ReduceLogSum", source, m.some_of(range(source.rank)), m.chance(0.5), bound=20.0)


@part(1)
def reduction_by_product(m: Growing) -> None:
    source = m.small(m.pick_float(lambda tensor: tensor.rank > 0), 1.0)
    m.reduced("ReduceProd", source, [m.axis(source)], m.chance(0.5), bound=1.0)


@part(2)
def reduction_of_whole_numbers(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.dtype in ("int64", "int32") and tensor.rank > 0)
    op = m.one_of(["ReduceSum", "ReduceMax", "ReduceMin"])
    m.reduced(op, source, m.some_of(range(source.rank)), m.chance(0.5), bound=50 * source.bound)


@part(2)
def reduction_of_everything(m: Growing) -> None:
    source = m.small(m.pick_float(), 50.0)
    keep = m.integer(0, 1)
    shape = [1] * source.rank if keep else []
    m.add(m.one_of(["ReduceSum", "ReduceMean", "ReduceMax"]), [source], shape, bound=source.bound * 50, keepdims=keep)


@part(5)
def softmax(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    op = m.one_of(["Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    if op == "Hardmax" and source.saturated:
        raise DoesNotFit
    axis = m.axis(source)
    m.add(
        op,
        [source],
        source.shape,
        bound=1.0 if op != "LogSoftmax" else 2 * source.bound + 10,
        axis=m.signed(axis, source.rank),
    )


@part(5)
def masked_softmax(m: Growing) -> None:
    scores = m.pick_float(lambda tensor: tensor.rank > 0 and isinstance(tensor.shape[-1], Dim))
    mask = m.pick(lambda tensor: tensor.dtype == "bool" and tensor.rank > 0 and tensor.shape[-1] == scores.shape[-1])
    if (
        not all(a in (b, 1) for a, b in zip(mask.shape[::-1], scores.shape[::-1], strict=False))
        or mask.rank > scores.rank
    ):
        raise DoesNotFit
    low = m.constant(np.float32(-1e9).reshape(()))
    hidden = m.add("Where", [mask, scores, low], scores.shape, bound=1e9)
    m.forget(hidden)
    m.add("Softmax", [hidden], scores.shape, bound=1.0, axis=-1)


@part(6)
def layer_norm(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    axis = m.integer(0, source.rank - 1) if m.chance(0.3) else source.rank - 1
    sizes = fixed(source.shape[axis:])
    if 0 in sizes:
        raise DoesNotFit
    scale = m.floats(sizes)
    form = m.one_of(["layer", "rms", "written"])
    if form == "layer":
        inputs = [source, scale, m.floats(sizes)] if m.chance(0.6) else [source, scale]
        m.add("LayerNormalization", inputs, source.shape, bound=30.0, axis=m.signed(axis, source.rank), epsilon=1e-2)
    elif form == "rms":
        m.add("RMSNormalization", [source, scale], source.shape, bound=30.0, axis=axis, epsilon=1e-2)
    elif axis == source.rank - 1:
        source = m.small(source, 1000.0)
        mean = m.reduced("ReduceMean", source, [axis], True, bound=source.bound)
        away = m.add("Sub", [source, mean], source.shape, bound=2 * source.bound)
        square = m.add("Mul", [away, away], source.shape, bound=4 * source.bound**2)
        spread = m.reduced("ReduceMean", square, [axis], True, bound=4 * source.bound**2)
        safe = m.add("Add", [spread, m.constant(np.float32(1e-2).reshape(()))], spread.shape, bound=spread.bound)
        root = m.add("Sqrt", [safe], spread.shape, bound=2 * source.bound)
        normal = m.add("Div", [away, root], source.shape, bound=10.0)
        m.add("Mul", [normal, scale], source.shape, bound=30.0)
    else:
        raise DoesNotFit


@part(5)
def channel_norm(m: Growing) -> None:
    source = m.small(m.pick_float(lambda tensor: tensor.rank >= 3 and isinstance(tensor.shape[1], int)), 1000.0)
    (channels,) = fixed(source.shape[1:2])
    if not channels:
        raise DoesNotFit
    scale, bias = m.floats([channels]), m.floats([channels])
    if m.chance(0.5):
        m.add("InstanceNormalization", [source, scale, bias], source.shape, bound=30.0, epsilon=1e-2)
    else:
        mean, variance = m.floats([channels]), m.constant(m.random.uniform(0.5, 2, channels), "float32")
        m.add("BatchNormalization", [source, scale, bias, mean, variance], source.shape, bound=source.bound * 6 + 12)


@part(1)
def unit_norm(m: Growing) -> None:
    # Away from zero, where ONNX Runtime and the definition part.
    source = m.positive(m.small(m.pick_float(lambda tensor: tensor.rank > 0), 100.0))
    axis = m.axis(source)
    m.add("LpNormalization", [source], source.shape, bound=1.0, axis=m.signed(axis, source.rank), p=m.integer(1, 2))


@part(3)
def grouped_norm(m: Growing) -> None:
    source = m.small(m.pick_float(lambda tensor: tensor.rank >= 3 and isinstance(tensor.shape[1], int)), 1000.0)
    (channels,) = fixed(source.shape[1:2])
    if not channels:
        raise DoesNotFit
    groups = m.one_of([factor for factor in range(1, channels + 1) if channels % factor == 0])
    inputs = [source, m.floats([channels]), m.floats([channels])]
    m.add("GroupNormalization", inputs, source.shape, bound=30.0, epsilon=1e-2, num_groups=groups)
