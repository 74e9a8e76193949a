"""Each layer against its documented definition in float64, and against OpenCV where OpenCV has the layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
Blobs = dict[str, tuple[tuple[int, ...], str]]

SIZES = (1, 7, 200)


@dataclass(frozen=True)
class Case:
    """One layer.

    ``expect`` takes the bottoms and the blobs in float64 and returns the tops. ``opencv`` and ``engine`` say whether
    OpenCV reads the layer as Caffe does, and whether the engine has its operators.
    """

    label: str
    body: str
    bottoms: Sequence[tuple[int, ...]]
    expect: Callable[..., Any]
    blobs: Sequence[tuple[int, ...]] = ()
    tops: int = 1
    opencv: bool = True
    engine: bool = True
    positive: bool = False
    ids: int = 0
    tolerance: float = 2e-6
    fixed_blobs: dict[int, Array] = field(default_factory=dict)
    positive_blobs: tuple[int, ...] = ()


def softmax(x: Array, axis: int) -> Array:
    raised = np.exp(x - x.max(axis, keepdims=True))
    return raised / raised.sum(axis, keepdims=True)


def arg_max(x: Array, axis: int) -> Array:
    """Place of the largest value, the last one of equal ones."""
    return x.shape[axis] - 1 - np.flip(x, axis).argmax(axis)


def convolve(x: Array, w: Array, b: Array, stride: int, pad: int, dilation: int, groups: int) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    reach = [dilation * (size - 1) + 1 for size in w.shape[2:]]
    rows, columns = ((size - span) // stride + 1 for size, span in zip(x.shape[2:], reach, strict=True))
    result = np.zeros((len(x), len(w), rows, columns))
    per_in, per_out = x.shape[1] // groups, len(w) // groups
    for output in range(len(w)):
        start = output // per_out * per_in
        for row in range(rows):
            for column in range(columns):
                patch = x[
                    :,
                    start : start + per_in,
                    row * stride : row * stride + reach[0] : dilation,
                    column * stride : column * stride + reach[1] : dilation,
                ]
                result[:, output, row, column] = (patch * w[output]).sum((1, 2, 3)) + b[output]
    return result


def pool(x: Array, reach: int, stride: int, pad: int, mean: bool, down: bool = False) -> Array:
    """Caffe's windows: sizes rounded up, a mean divided by what lies inside of bottom and padding."""

    def windows(size: int) -> list[tuple[int, int, int]]:
        left = (size + 2 * pad - reach) / stride
        count = int(np.floor(left) if down else np.ceil(left)) + 1
        if pad and (count - 1) * stride >= size + pad:
            count -= 1
        starts = [index * stride - pad for index in range(count)]
        ends = [min(start + reach, size + pad) for start in starts]
        return [(max(s, 0), min(e, size), e - s) for s, e in zip(starts, ends, strict=True)]

    rows, columns = windows(x.shape[2]), windows(x.shape[3])
    result = np.zeros((*x.shape[:2], len(rows), len(columns)))
    for i, (top, bottom, high) in enumerate(rows):
        for j, (left, right, wide) in enumerate(columns):
            patch = x[:, :, top:bottom, left:right]
            result[:, :, i, j] = patch.sum((2, 3)) / (high * wide) if mean else patch.max((2, 3))
    return result


CASES = [
    Case("relu", 'type: "ReLU"', [(5,)], lambda x: np.maximum(x, 0)),
    Case(
        "leaky relu", 'type: "ReLU" relu_param { negative_slope: 0.1 engine: CUDNN }', [(5,)],
        lambda x: np.where(x > 0, x, np.float32(0.1) * x),
    ),
    Case("prelu", 'type: "PReLU"', [(5,)], lambda x, a: np.where(x > 0, x, a * x), [(5,)]),
    Case(
        "prelu of images", 'type: "PReLU"', [(3, 2, 4)],
        lambda x, a: np.where(x > 0, x, a[:, None, None] * x), [(3,)],
    ),
    Case(
        "prelu, shared", 'type: "PReLU" prelu_param { channel_shared: true }', [(5,)],
        lambda x, a: np.where(x > 0, x, a * x), [()], opencv=False,
    ),
    Case(
        "elu", 'type: "ELU" elu_param { alpha: 0.5 }', [(5,)], lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)),
        engine=False,
    ),
    Case("sigmoid", 'type: "Sigmoid"', [(5,)], lambda x: 1 / (1 + np.exp(-x))),
    Case("tanh", 'type: "TanH"', [(5,)], np.tanh),
    Case("absval", 'type: "AbsVal"', [(5,)], np.abs),
    Case("bnll", 'type: "BNLL"', [(5,)], lambda x: np.log1p(np.exp(x)), engine=False),
    Case(
        "swish", 'type: "Swish" swish_param { beta: 1.5 }', [(5,)], lambda x: x / (1 + np.exp(-1.5 * x)), opencv=False,
    ),
    Case("clip", 'type: "Clip" clip_param { min: -0.5 max: 0.75 }', [(5,)], lambda x: x.clip(-0.5, 0.75), opencv=False),
    Case(
        "threshold", 'type: "Threshold" threshold_param { threshold: 0.25 }', [(5,)],
        lambda x: (x > 0.25).astype(float), opencv=False,
    ),
    Case(
        "power", 'type: "Power" power_param { power: 2 scale: 0.5 shift: 1.5 }', [(5,)], lambda x: (1.5 + 0.5 * x) ** 2,
    ),
    Case(
        "power, odd", 'type: "Power" power_param { power: 1.5 scale: 0.5 shift: 4 }', [(5,)],
        lambda x: (4 + 0.5 * x) ** 1.5, engine=False, positive=True,
    ),
    Case(
        "power, linear", 'type: "Power" power_param { scale: -3 shift: 0.25 }', [(5,)], lambda x: 0.25 - 3 * x,
    ),
    Case(
        "power, constant", 'type: "Power" power_param { scale: 0 shift: 3 power: 2 }', [(5,)],
        lambda x: np.full_like(x, 9),
    ),
    Case("exp", 'type: "Exp"', [(5,)], np.exp),
    Case(
        "exp, base", 'type: "Exp" exp_param { base: 2 scale: 0.5 shift: 1 }', [(5,)], lambda x: 2 ** (1 + 0.5 * x),
    ),
    Case("log", 'type: "Log"', [(5,)], np.log, engine=False, positive=True),
    Case(
        "log, base", 'type: "Log" log_param { base: 10 scale: 2 shift: 1 }', [(5,)],
        lambda x: np.log10(1 + 2 * x), engine=False, positive=True, opencv=False,
    ),
    Case("softmax", 'type: "Softmax"', [(5,)], lambda x: softmax(x, 1)),
    Case("softmax, axis", 'type: "Softmax" softmax_param { axis: -1 }', [(3, 5)], lambda x: softmax(x, 2)),
    Case("dropout", 'type: "Dropout" dropout_param { dropout_ratio: 0.9 }', [(5,)], lambda x: x),
    Case("eltwise, sum", 'type: "Eltwise"', [(5,)] * 3, lambda a, b, c: a + b + c),
    Case(
        "eltwise, weighted", 'type: "Eltwise" eltwise_param { coeff: 0.5 coeff: -1 coeff: 1 }', [(5,)] * 3,
        lambda a, b, c: 0.5 * a - b + c,
    ),
    Case(
        "eltwise, product", 'type: "Eltwise" eltwise_param { operation: PROD }', [(5,)] * 3, lambda a, b, c: a * b * c,
    ),
    Case(
        "eltwise, maximum", 'type: "Eltwise" eltwise_param { operation: MAX }', [(4, 2)] * 2, np.maximum,
    ),
    Case("scale", 'type: "Scale"', [(5,)], lambda x, s: x * s, [(5,)]),
    Case(
        "scale and bias of images", 'type: "Scale" scale_param { bias_term: true }', [(3, 2, 4)],
        lambda x, s, b: x * s[:, None, None] + b[:, None, None], [(3,), (3,)],
    ),
    Case(
        "scale, two axes", 'type: "Scale" scale_param { axis: -2 num_axes: -1 bias_term: true }', [(2, 3, 4)],
        lambda x, s, b: x * s + b, [(3, 4), (3, 4)], opencv=False,
    ),
    Case("scale, scalar", 'type: "Scale" scale_param { num_axes: 0 }', [(5,)], lambda x, s: x * s, [()], opencv=False),
    Case(
        "scale by a bottom", 'type: "Scale" scale_param { axis: 0 bias_term: false }', [(3, 4), (3,)],
        lambda x, s: x * s[:, :, None],
    ),
    Case(
        "scale by a blob a candidate", 'type: "Scale" scale_param { axis: 0 }', [(3, 4), ()],
        lambda x, s: x * s[:, None, None],
    ),
    Case("bias", 'type: "Bias"', [(5,)], lambda x, b: x + b, [(5,)], opencv=False),
    Case(
        "bias by a bottom", 'type: "Bias" bias_param { axis: 0 }', [(3, 4), (3, 4)], lambda x, b: x + b, opencv=False,
    ),
    Case(
        "batch norm", 'type: "BatchNorm" batch_norm_param { eps: 0.001 }', [(5,)],
        lambda x, m, v, f: (x - m / f) / np.sqrt(v / f + 0.001), [(5,), (5,), (1,)], positive_blobs=(1, 2),
    ),
    Case(
        "batch norm of images", 'type: "BatchNorm" batch_norm_param { use_global_stats: true }', [(3, 2, 4)],
        lambda x, m, v, f: (x - (m / f)[:, None, None]) / np.sqrt((v / f)[:, None, None] + 1e-5),
        [(3,), (3,), (1,)], positive_blobs=(1, 2),
    ),
    Case(
        "batch norm, never trained", 'type: "BatchNorm" batch_norm_param { eps: 0.25 }', [(5,)],
        lambda x, m, v, f: x / 0.5, [(5,), (5,), (1,)], fixed_blobs={2: np.zeros(1)},
    ),
    Case(
        "reduction, sum", 'type: "Reduction" reduction_param { axis: 1 coeff: 0.5 }', [(3, 4)],
        lambda x: 0.5 * x.sum((1, 2)), opencv=False,
    ),
    Case(
        "reduction, mean", 'type: "Reduction" reduction_param { operation: MEAN axis: -1 }', [(3, 4)],
        lambda x: x.mean(2), opencv=False,
    ),
    Case(
        "reduction, absolute", 'type: "Reduction" reduction_param { operation: ASUM axis: 1 }', [(5,)],
        lambda x: np.abs(x).sum(1), opencv=False,
    ),
    Case(
        "reduction, squares", 'type: "Reduction" reduction_param { operation: SUMSQ axis: 1 }', [(5,)],
        lambda x: (x * x).sum(1), opencv=False,
    ),
    Case(
        "arg max", 'type: "ArgMax"', [(3, 4)], lambda x: arg_max(x.reshape(len(x), 12), 1)[:, None, None],
        opencv=False, ids=4,
    ),
    Case(
        "arg max with value", 'type: "ArgMax" argmax_param { out_max_val: true }', [(5,)],
        lambda x: np.stack([arg_max(x, 1), x.max(1)], 1)[:, :, None], opencv=False, ids=4,
    ),
    Case(
        "arg max, axis", 'type: "ArgMax" argmax_param { axis: 1 }', [(3, 4)], lambda x: arg_max(x, 1)[:, None],
        opencv=False, ids=4,
    ),
    Case(
        "arg max, value on an axis", 'type: "ArgMax" argmax_param { axis: 1 out_max_val: true }', [(3, 4)],
        lambda x: x.max(1, keepdims=True), opencv=False,
    ),
    Case("concat", 'type: "Concat"', [(2,), (3,), (4,)], lambda *parts: np.concatenate(parts, 1)),
    Case(
        "concat, old name", 'type: "Concat" concat_param { concat_dim: 2 }', [(2, 3), (2, 1)],
        lambda *parts: np.concatenate(parts, 2), opencv=False,
    ),
    Case(
        "slice, points", 'type: "Slice" slice_param { slice_point: 1 slice_point: 3 }', [(6,)],
        lambda x: [x[:, :1], x[:, 1:3], x[:, 3:]], tops=3,
    ),
    Case(
        "slice, equal parts", 'type: "Slice" slice_param { axis: -1 }', [(3, 4)],
        lambda x: [x[:, :, :2], x[:, :, 2:]], tops=2, opencv=False,
    ),
    Case("slice, one part", 'type: "Slice" slice_param { slice_dim: 1 }', [(6,)], lambda x: x, opencv=False),
    Case("split", 'type: "Split"', [(6,)], lambda x: [x, x], tops=2, opencv=False),
    Case("flatten", 'type: "Flatten"', [(3, 2, 2)], lambda x: x.reshape(len(x), 12)),
    Case(
        "flatten, some axes", 'type: "Flatten" flatten_param { axis: -3 end_axis: 2 }', [(3, 2, 4)],
        lambda x: x.reshape(len(x), 6, 4),
    ),
    Case(
        "reshape", 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 2 } }', [(6,)],
        lambda x: x.reshape(len(x), 3, 2),
    ),
    Case(
        "reshape, from an axis", 'type: "Reshape" reshape_param { shape { dim: 2 dim: 3 } axis: 1 num_axes: 1 }',
        [(6, 5)], lambda x: x.reshape(len(x), 2, 3, 5),
    ),
    Case(
        "reshape, new axis", 'type: "Reshape" reshape_param { shape { dim: 1 } axis: -2 num_axes: 0 }', [(6, 5)],
        lambda x: x[:, :, None], opencv=False,
    ),
    Case(
        "reshape, batch left over", 'type: "Reshape" reshape_param { shape { dim: -1 dim: 2 dim: 3 } }', [(6,)],
        lambda x: x.reshape(-1, 2, 3),
    ),
    Case(
        "reshape, batch as a number", 'type: "Reshape" reshape_param { shape { dim: 5 dim: 2 dim: 3 } }', [(6,)],
        lambda x: x.reshape(-1, 2, 3), opencv=False,
    ),
    Case(
        "tile", 'type: "Tile" tile_param { axis: 2 tiles: 3 }', [(2, 4)], lambda x: np.tile(x, (1, 1, 3)),
        opencv=False,
    ),
    Case(
        "inner product", 'type: "InnerProduct" inner_product_param { num_output: 4 }', [(6,)],
        lambda x, w, b: x @ w.T + b, [(4, 6), (4,)],
    ),
    Case(
        "inner product of images", 'type: "InnerProduct" inner_product_param { num_output: 4 bias_term: false }',
        [(3, 2, 2)], lambda x, w: x.reshape(len(x), 12) @ w.T, [(4, 12)],
    ),
    Case(
        "inner product, transposed", 'type: "InnerProduct" inner_product_param { num_output: 4 transpose: true }',
        [(6,)], lambda x, w, b: x @ w + b, [(6, 4), (4,)], opencv=False,
    ),
    Case(
        "inner product, last axis", 'type: "InnerProduct" inner_product_param { num_output: 4 axis: -1 }',
        [(3, 6)], lambda x, w, b: x @ w.T + b, [(4, 6), (4,)],
    ),
    Case(
        "inner product, two last axes",
        'type: "InnerProduct" inner_product_param { num_output: 4 axis: 2 transpose: true bias_term: false }',
        [(3, 2, 6)], lambda x, w: x.reshape(len(x), 3, 12) @ w, [(12, 4)], opencv=False,
    ),
    Case(
        "embed", 'type: "Embed" embed_param { input_dim: 9 num_output: 4 bias_term: false }', [(3,)],
        lambda x, w: w[x], [(9, 4)], ids=9, opencv=False,
    ),
    Case(
        "embed with bias", 'type: "Embed" embed_param { input_dim: 9 num_output: 4 }', [()],
        lambda x, w, b: w[x] + b, [(9, 4), (4,)], ids=9, opencv=False,
    ),
    Case(
        "convolution",
        'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 }',
        [(2, 7, 6)], lambda x, w, b: convolve(x, w, b, 2, 1, 1, 2), [(4, 1, 3, 3), (4,)], engine=False,
    ),
    Case(
        "convolution, dilated",
        'type: "Convolution" convolution_param { num_output: 2 kernel_h: 2 kernel_w: 3 dilation: 2 }',
        [(3, 7, 6)], lambda x, w, b: convolve(x, w, b, 1, 0, 2, 1), [(2, 3, 2, 3), (2,)], engine=False,
    ),
    Case(
        "pooling, maximum", 'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 }', [(2, 6, 8)],
        lambda x: pool(x, 3, 2, 1, False), engine=False,
    ),
    Case(
        "pooling, mean over the edge", 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 }',
        [(2, 6, 8)], lambda x: pool(x, 3, 2, 0, True), engine=False,
    ),
    Case(
        "pooling, mean with padding", 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }',
        [(2, 5, 6)], lambda x: pool(x, 3, 2, 1, True), engine=False,
    ),
    Case(
        "pooling, last window left out", 'type: "Pooling" pooling_param { kernel_size: 2 stride: 3 pad: 1 }',
        [(2, 5, 5)], lambda x: pool(x, 2, 3, 1, False), engine=False,
    ),
    Case(
        "convolution without bias",
        'type: "Convolution" convolution_param { num_output: 2 kernel_size: 1 bias_term: false }', [(3, 4, 4)],
        lambda x, w: convolve(x, w, np.zeros(2), 1, 0, 1, 1), [(2, 3, 1, 1)], engine=False,
    ),
    Case(
        "pooling, rounded down",
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 stride: 2 round_mode: FLOOR }',
        [(2, 6, 8)], lambda x: pool(x, 3, 2, 0, True, down=True), engine=False, opencv=False,
    ),
    Case(
        "pooling, global", 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }', [(2, 5, 6)],
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    Case(
        "pooling, global maximum", 'type: "Pooling" pooling_param { pool: MAX global_pooling: true }', [(2, 5, 6)],
        lambda x: x.max((2, 3), keepdims=True),
    ),
]  # fmt: skip


def name_of(case: Case) -> str:
    """OpenCV calls some layers by their top, so both are the same where there is one."""
    return "y0" if case.tops == 1 else "it"


def model_of(caffe: Any, case: Case, random: np.random.Generator) -> Any:
    """The layer alone, behind its inputs, with a declared batch of 5."""
    inputs = [
        f'layer {{ name: "x{index}" type: "Input" top: "x{index}" input_param {{ shape {{ dim: 5 '
        f"{' '.join(f'dim: {dim}' for dim in shape)} }} }} }}"
        for index, shape in enumerate(case.bottoms)
    ]
    bottoms = " ".join(f'bottom: "x{index}"' for index in range(len(case.bottoms)))
    tops = " ".join(f'top: "y{index}"' for index in range(case.tops))
    blobs = []
    for index, shape in enumerate(case.blobs):
        blob = case.fixed_blobs.get(index, random.normal(size=shape))
        blobs.append(np.asarray(np.abs(blob) + 0.5 if index in case.positive_blobs else blob, np.float32))
    name = name_of(case)
    text = "\n".join([*inputs, f'layer {{ name: "{name}" {bottoms} {tops} {case.body} }}'])
    return caffe.Model(text, {name: blobs} if blobs else {})


def feeds_of(case: Case, candidates: int, random: np.random.Generator) -> dict[str, Array]:
    feeds: dict[str, Array] = {}
    for index, shape in enumerate(case.bottoms):
        full = (candidates, *shape)
        if case.ids and '"Embed"' in case.body:
            feeds[f"x{index}"] = random.integers(0, case.ids, full)
        elif case.ids:
            # Few different values: ties.
            feeds[f"x{index}"] = random.integers(0, case.ids, full).astype(np.float32)
        else:
            drawn = random.normal(0, 1.5, full).astype(np.float32)
            feeds[f"x{index}"] = np.abs(drawn) + np.float32(0.1) if case.positive else drawn
    return feeds


def expected_of(case: Case, model: Any, feeds: dict[str, Array]) -> list[Array]:
    precise = [array if array.dtype.kind == "i" else array.astype(np.float64) for array in feeds.values()]
    blobs = [np.asarray(blob, np.float64) for blob in model.weights.get(name_of(case), ())]
    result = case.expect(*precise, *blobs)
    return result if isinstance(result, list) else [np.asarray(result)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_layer_computes_its_definition(caffe: Any, case: Case) -> None:
    random = np.random.default_rng(len(case.label))
    model = model_of(caffe, case, random)
    converted = model.to_onnx()
    (last,) = [node.name for node in converted.graph.node if "y0" in node.output]
    assert last in (name_of(case), f"{name_of(case)}/y0")
    for candidates in SIZES:
        feeds = feeds_of(case, candidates, random)
        expected = expected_of(case, model, feeds)
        found = caffe.run_onnx(converted, feeds)
        assert list(found) == [f"y{index}" for index in range(case.tops)]
        for name, array in zip(found, expected, strict=True):
            caffe.assert_close(found[name], array, f"{case.label}, {name}, N = {candidates}", case.tolerance)


@pytest.mark.parametrize("case", [case for case in CASES if case.opencv], ids=lambda case: case.label)
def test_layer_agrees_with_opencv(caffe: Any, case: Case) -> None:
    random = np.random.default_rng(len(case.label))
    model = model_of(caffe, case, random)
    converted = model.to_onnx()
    for candidates in SIZES:
        feeds = feeds_of(case, candidates, random)
        found = caffe.run_onnx(converted, feeds)
        # OpenCV's pooling makes a mask, too.
        for name, array in zip(found, model.opencv(feeds, [name_of(case)])[: case.tops], strict=True):
            caffe.assert_close(found[name], array, f"{case.label}, {name}, N = {candidates}", 4e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.engine], ids=lambda case: case.label)
def test_layer_runs_in_the_engine(caffe: Any, case: Case) -> None:
    random = np.random.default_rng(len(case.label))
    model = model_of(caffe, case, random)
    feeds = [feeds_of(case, candidates, random) for candidates in (0, *SIZES)]
    for entry, found in zip(feeds, caffe.run_engine(model.to_onnx(), feeds), strict=True):
        for name, array in zip(found, expected_of(case, model, entry), strict=True):
            caffe.assert_close(found[name], array, f"{case.label}, {name}", case.tolerance)
