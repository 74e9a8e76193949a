"""ONNX models that use the rest of the operators: pointwise, reductions, shapes, control flow, sequences, functions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from .onnx_builder import Builder
from .source import Source

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp"),
    *("Floor", "HardSigmoid", "HardSwish", "Identity", "Log", "Mish", "Neg", "Reciprocal", "Round", "Selu", "Shrink"),
    *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
)


def sources() -> list[Source]:
    """All of them."""
    makers = (
        *(_unary, _binary, _bits, _reductions, _normalizations, _sizes, _repeats, _branches, _loops, _scans),
        *(_sequences, _functions, _texts, _casts, _old_forms, _newest, _whole_numbers),
    )
    return [make() for make in makers]


def _unary() -> Source:
    b = Builder("unary", 20)
    x = b.input("x", ["N", 3])
    made = [b.node(op, x) for op in _UNARY]
    return b.source(*(b.sum(made[at : at + 9]) for at in range(0, len(made), 9)))


def _binary() -> Source:
    b = Builder("binary", 15)
    x, y = b.input("x", ["N", 3]), b.input("y", [1, 3])
    made = [b.node(op, x, y) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "PRelu")]
    asked = [b.node(op, x, y) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")]
    asked += [b.node("IsNaN", x), b.node("IsInf", x, detect_negative=0)]
    truth = b.node("Not", b.node("Xor", b.node("And", asked[0], asked[1]), b.node("Or", asked[2], asked[3])))
    truth = b.node("And", truth, b.node("Or", b.node("And", asked[4], asked[5]), asked[6]))
    rest = b.node("Mod", x, b.constant([2.0, 3.0, 0.5], np.float32), fmod=1)
    return b.source(b.node("Where", truth, b.sum(made), rest))


def _bits() -> Source:
    b = Builder("bits", 18)
    x, y = b.input("x", ["N", 3], np.uint32), b.input("y", ["N", 3], np.int32)
    shifted = b.node("BitShift", x, b.constant([1, 2, 31], np.uint32), direction="LEFT")
    mixed = b.node("BitwiseXor", b.node("BitwiseAnd", y, b.constant(6, np.int32)), b.node("BitwiseNot", y))
    whole = b.node("Div", b.node("BitwiseOr", mixed, y), b.constant([2, -3, 5], np.int32))
    rest = b.node("Mod", whole, b.constant([7, -4, 9], np.int32))
    return b.source(shifted, b.node("Pow", rest, b.constant(2, np.int32)), b.chain(rest, "Abs", "Neg", "Sign"))


def _reductions() -> Source:
    b = Builder("reductions", 18)
    x = b.input("x", ["N", 2, 3])
    kinds = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    made = [b.node(f"Reduce{kind}", x, b.constant([1, -1]), keepdims=0) for kind in kinds]
    every = b.node("ReduceSum", x, noop_with_empty_axes=1)
    return b.source(b.sum(made), b.node("ReduceMax", every, b.constant([2]), keepdims=1))


def _normalizations() -> Source:
    b = Builder("normalizations", 21)
    x = b.input("x", ["N", 4, 6])
    made = [
        b.node("Softmax", x, axis=1),
        b.node("LogSoftmax", x, axis=-1),
        b.node("Hardmax", x, axis=2),
        b.node("LpNormalization", x, axis=1, p=1),
        b.node("MeanVarianceNormalization", x, axes=[0, 2]),
        b.node("GroupNormalization", x, b.weights(4), b.weights(4), num_groups=2),
        b.node("LayerNormalization", x, b.weights(6), axis=2, epsilon=1e-3),
    ]
    return b.source(b.sum(made))


def _sizes() -> Source:
    b = Builder("sizes", 15)
    x, y = b.input("x", ["N", "T", 4]), b.input("y", ["T", 2])
    shape = b.node("Shape", x)
    count = b.node("Gather", shape, b.constant(0))
    steps = b.node("Slice", shape, b.constant([1]), b.constant([2]), b.constant([0]))
    double = b.node("Mul", steps, b.constant([2]))
    wanted = b.node("Concat", b.node("Unsqueeze", count, b.constant([0])), double, b.constant([2]), axis=0)
    cut = b.node("Reshape", x, wanted)
    places = b.node("Range", b.constant(0), b.node("Squeeze", steps, b.constant([0])), b.constant(1))
    grid = b.node("Expand", places, b.node("Concat", b.constant([1]), steps, axis=0))
    zeros = b.node("ConstantOfShape", b.node("Shape", y))
    total = b.node("Cast", b.node("Size", y), to=TensorProto.FLOAT)
    size = b.node("Shape", x, start=1, end=-1)
    near = b.node("Where", b.node("Greater", grid, b.constant(1)), b.constant(2), b.constant(3))
    return b.source(cut, near, b.node("Mul", b.node("Add", y, zeros), total), size, candidates="N")


def _repeats() -> Source:
    b = Builder("repeats", 18)
    x = b.input("x", ["N", 3, 3])
    padded = b.node("Pad", x, b.constant([0, 1, 1, 0, 0, 2]), b.constant(0.5, np.float32))
    edges = b.node("Pad", x, b.constant([0, 1, 1, 0, 1, 1]), mode="reflect")
    tiled = b.node("Tile", padded, b.constant([1, 2, 1]))
    back = b.node("Slice", edges, b.constant([-1, 4]), b.constant([-9, 0]), b.constant([1, 2]), b.constant([-1, -2]))
    eye = b.node("EyeLike", b.weights(3, 3), k=1)
    upper = b.node("Trilu", b.node("MatMul", x, eye), upper=1)
    parts = b.nodes_of("Split", [upper], 3, axis=2, num_outputs=3)
    return b.source(tiled, back, b.node("Concat", *parts[::-1], axis=1), b.node("Flatten", upper, axis=2))


def _branches() -> Source:
    b = Builder("branches", 16)
    x = b.input("x", ["N", 3])
    inner = [b.graph([], ["deep"], [helper.make_node(op, [x], ["deep"])]) for op in ("Tanh", "Relu")]
    rank = b.node("Size", b.node("Shape", x))
    flat = b.node("Equal", rank, b.constant(2))
    chosen = helper.make_node("If", [flat], ["found"], then_branch=inner[0], else_branch=inner[1])
    then = b.graph([], ["sum"], [chosen, helper.make_node("Add", ["found", x], ["sum"])])
    other = b.graph([], ["none"], [helper.make_node("Neg", [x], ["none"])])
    return b.source(b.node("If", b.constant(True, np.bool_), then_branch=then, else_branch=other))


def _loops() -> Source:
    b = Builder("loops", 16)
    x, weight = b.input("x", ["N", 3]), b.weights(3, 3)
    nodes = [
        helper.make_node("MatMul", ["state", weight], ["product"]),
        helper.make_node("Tanh", ["product"], ["next"]),
        helper.make_node("Identity", ["going"], ["goes_on"]),
        helper.make_node("Identity", ["next"], ["kept"]),
    ]
    body = b.graph(["round", "going", "state"], ["goes_on", "next", "kept"], nodes)
    last, every = b.nodes_of("Loop", [b.constant(3), b.constant(True, np.bool_), x], 2, body=body)
    return b.source(last, b.node("ReduceMean", every, axes=[0], keepdims=0))


def _scans() -> Source:
    b = Builder("scans", 16)
    x, start = b.input("x", ["N", 4, 3]), b.input("start", ["N", 3])
    nodes = [helper.make_node("Add", ["state", "step"], ["next"]), helper.make_node("Neg", ["next"], ["made"])]
    body = b.graph(["state", "step"], ["next", "made"], nodes)
    last, every = b.nodes_of(
        "Scan",
        [start, x],
        2,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        scan_input_directions=[1],
    )
    return b.source(last, every)


def _sequences() -> Source:
    b = Builder("sequences", 13)
    x = b.input("x", ["N", 6])
    parts = b.node("SplitToSequence", x, b.constant([1, 2, 3]), axis=1)
    longer = b.node("SequenceInsert", parts, b.node("SequenceAt", parts, b.constant(1)), b.constant(0))
    shorter = b.node("SequenceErase", longer, b.constant(-1))
    pair = b.node("SequenceConstruct", x, b.node("Neg", x))
    many = b.node("SequenceInsert", b.node("SequenceEmpty", dtype=1), x)
    count = b.node("SequenceLength", shorter)
    stacked = b.node("ConcatFromSequence", pair, axis=1, new_axis=1)
    joined = b.node("ConcatFromSequence", shorter, axis=1)
    return b.source(joined, stacked, b.node("SequenceAt", many, b.constant(0)), count)


def _functions() -> Source:
    b = Builder("functions", 17)
    b.opsets["local"] = 1
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    slope = helper.make_node("LeakyRelu", ["a"], ["b"])
    slope.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    b.functions += [
        helper.make_function("local", "Bend", ["a"], ["b"], [slope], opset, attributes=["slope"]),
        helper.make_function(
            "local",
            "Twice",
            ["a"],
            ["c"],
            [
                helper.make_node("Bend", ["a"], ["b"], domain="local", slope=0.5),
                helper.make_node("Bend", ["b"], ["c"], domain="local", slope=0.25),
            ],
            opset,
        ),
    ]
    x = b.input("x", ["N", 3])
    return b.source(b.chain(x, ("Twice", {"domain": "local"}), ("Bend", {"domain": "local", "slope": 2.0})))


def _texts() -> Source:
    b = Builder("names with/odd words", 17)
    x = b.input("serving default:x.1", ["batch size", 3])
    scale = b.constant([1.0, 2.0, 3.0], np.float32)
    value = helper.make_tensor("value", TensorProto.FLOAT, [3], [0.5, 0.25, 4.0])
    fixed = b.node("Constant", value=value)
    whole = b.node("Constant", value_ints=[1, 2, 3])
    real = b.node("Cast", whole, to=TensorProto.FLOAT)
    return b.source(b.node("Mul", b.node("Mul", x, scale), b.node("Add", fixed, real)))


def _casts() -> Source:
    b = Builder("casts", 21)
    x, y = b.input("x", ["N", 3]), b.input("y", ["N", 3], np.float64)
    numbers = (2, 3, 4, 5, 6, 7, 9, 11, 12, 13)
    kinds = [b.node("Cast", b.node("Cast", x, to=number), to=TensorProto.FLOAT) for number in numbers]
    like = b.node("CastLike", y, x)
    return b.source(b.sum(kinds), like, b.node("Clip", y, "", b.constant(1.0, np.float64)))


def _old_forms() -> Source:
    b = Builder("old_forms", 8)
    x = b.input("x", ["N", 4])
    cut = b.node("Slice", x, axes=[1], starts=[0], ends=[3])
    padded = b.node("Pad", cut, pads=[0, 1, 0, 0], value=1.5)
    deep = b.node("Squeeze", b.node("Unsqueeze", padded, axes=[1]), axes=[1])
    parts = b.nodes_of("Split", [deep], 2, axis=1, split=[1, 3])
    best, _ = b.nodes_of("TopK", [parts[1]], 2, axis=1, k=2)
    total = b.node("ReduceSum", b.node("Softmax", best, axis=1), axes=[1], keepdims=1)
    return b.source(b.node("Clip", b.node("Add", total, parts[0]), min=-1.0, max=2.0), total)


def _newest() -> Source:
    b = Builder("newest", 26)
    x, place = b.input("x", ["N", 3, 4]), b.input("place", ["N"], np.int64)
    written = b.node("TensorScatter", x, b.node("Swish", b.node("Neg", x), alpha=1.5), place, axis=1, mode="circular")
    bits = b.node("BitCast", b.node("Neg", x), to=TensorProto.INT32)
    return b.source(b.node("CumProd", written, b.constant(1)), bits)


def _whole_numbers() -> Source:
    b = Builder("whole_numbers", 10)
    x = b.input("x", ["N", 2, 4, 4], np.uint8)
    kernel, zero = b.constant(b.random.integers(0, 9, (3, 2, 3, 3)), np.uint8), b.constant(2, np.uint8)
    scale = b.constant(0.5, np.float32)
    plain = b.node("ConvInteger", x, kernel, zero, zero, pads=[1, 1, 1, 1])
    scaled = b.node("QLinearConv", x, scale, zero, kernel, scale, zero, scale, zero)
    table = b.node("Scatter", b.weights(4, 2), b.constant([[0, 1], [2, 3]]), b.weights(2, 2), axis=0)
    full = b.node("NonZero", b.constant([[1, 0], [2, 3]]))
    real = b.node("Cast", plain, to=TensorProto.FLOAT)
    return b.source(
        b.node("ReduceMean", real, axes=[1, 2, 3], keepdims=0), scaled, b.node("Concat", table, axis=0), full
    )
