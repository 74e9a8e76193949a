"""Functions of one number, arithmetic, comparison, logic, casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from .growing import DoesNotFit, Growing, Tensor, joined, part

Bound = Callable[[float], float]

_SAME: Bound = lambda bound: bound  # noqa: E731
_ONE: Bound = lambda bound: 1.0  # noqa: E731

UNARY: dict[str, tuple[float, Bound]] = {
    **dict.fromkeys(("Relu", "Neg", "Abs", "Identity", "LeakyRelu", "Elu", "Asinh", "HardSwish"), (np.inf, _SAME)),
    **dict.fromkeys(("ThresholdedRelu", "Celu", "Mish", "Gelu", "Shrink", "Selu", "Swish"), (np.inf, _SAME)),
    **dict.fromkeys(("Sigmoid", "Tanh", "Softsign", "Erf", "HardSigmoid", "Sign", "Atan"), (np.inf, _ONE)),
    **{op: (np.inf, lambda bound: bound + 1) for op in ("Softplus", "Floor", "Ceil", "Round")},
    **dict.fromkeys(("Sin", "Cos"), (100.0, _ONE)),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), (0.95, _SAME)),
    "Tan": (1.2, lambda bound: 3.0),
    "Exp": (8.0, lambda bound: float(np.exp(bound))),
    "Sinh": (8.0, lambda bound: float(np.sinh(bound))),
    "Cosh": (8.0, lambda bound: float(np.cosh(bound))),
}
"""Function: largest magnitude that it should see, bound of the result."""


_STEPS = ("Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "Shrink")
"""Functions with jumps: the last digits decide where a number stands at one."""


@part(10)
def unary(m: Growing) -> None:
    source = m.pick_float()
    op = m.one_of(list(UNARY))
    most, bound = UNARY[op]
    if op in _STEPS and source.saturated:
        raise DoesNotFit
    if most == 0.95:
        scaled = m.add("Tanh", [source], source.shape, bound=1.0)
        source = m.add("Mul", [scaled, m.constant(np.float32(0.9).reshape(()))], source.shape, bound=0.9)
    source = m.small(source, most)
    extra: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu", "ThresholdedRelu", "Celu", "HardSigmoid") and m.chance(0.5):
        extra["alpha"] = m.one_of([0.2, 0.5, 1.3])
    m.add(op, [source], source.shape, bound=bound(source.bound) * 1.5, **extra)


@part(3)
def positive_function(m: Growing) -> None:
    source = m.positive(m.pick_float())
    op = m.one_of(["Log", "Sqrt", "Reciprocal"])
    m.add(op, [source], source.shape, bound=max(4.0, np.sqrt(source.bound)))


@part(10)
def arithmetic(m: Growing) -> None:
    left = m.pick_float()
    right = m.partner(left)
    op = m.one_of(["Add", "Sub", "Mul", *(["Max", "Min"] if m.opset >= 8 else [])])
    if op == "Mul" and left.bound * right.bound > 1e4:
        left = m.small(left, 1.0)
    shape = joined(left.shape, right.shape)
    assert shape is not None
    pair = [left, right] if m.chance(0.5) else [right, left]
    bound = left.bound * right.bound if op == "Mul" else left.bound + right.bound
    m.add(op, pair, shape, bound=bound)


@part(3)
def division(m: Growing) -> None:
    left = m.small(m.pick_float(), 1000.0)
    right = m.positive(m.partner(left))
    shape = joined(left.shape, right.shape)
    assert shape is not None
    m.add("Div", [left, right], shape, bound=4 * left.bound)


@part(2)
def power(m: Growing) -> None:
    exponent = m.one_of([2.0, 0.5, 3.0, -1.0, 1.5, 0.0])
    source = m.small(m.pick_float(), 10.0)
    if exponent != 2.0:
        source = m.positive(source)
    number = m.constant(np.full(m.one_of([(), (1,)]), exponent, np.float32))
    shape = source.shape or ((1,) if m.constants[number].ndim else ())
    m.add("Pow", [source, number], shape, bound=max(16.0, source.bound ** abs(exponent)))


@part(2)
def several(m: Growing) -> None:
    first = m.pick_float()
    others = [m.partner(first) for _ in range(m.integer(0, 2))]
    if m.opset < 8:
        raise DoesNotFit
    shape = first.shape
    for other in others:
        together = joined(shape, other.shape)
        if together is None:
            raise DoesNotFit
        shape = together
    bound = first.bound + sum(other.bound for other in others)
    m.add(m.one_of(["Sum", "Max", "Min", "Mean"]), [first, *others], shape, bound=bound)


@part(2)
def parametric(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    if m.opset < 9:
        raise DoesNotFit
    slope = [dim if isinstance(dim, int) and m.chance(0.7) else 1 for dim in source.shape]
    slope = slope[m.integer(0, source.rank - 1) :]
    m.add("PRelu", [source, m.floats(slope)], source.shape, bound=3 * source.bound)


@part(3)
def clip(m: Growing) -> None:
    source = m.pick_float()
    if m.opset < 11:
        m.add(
            "Clip",
            [source],
            source.shape,
            bound=source.bound,
            **m.one_of([{"min": -1.0}, {"max": 0.5}, {"min": 0.0, "max": 6.0}]),
        )
        return
    low, high = (m.constant(np.float32(value).reshape(())) for value in (-m.integer(0, 2), m.integer(0, 3) + 0.5))
    inputs = m.one_of([[source, low], [source, "", high], [source, low, high], [source]])
    m.add("Clip", inputs, source.shape, bound=source.bound + 4)


@part(4)
def whole_numbers(m: Growing) -> None:
    left = m.pick(lambda tensor: tensor.dtype in ("int64", "int32") and tensor.bound < 1e6)
    right = m.partner(left)
    shape = joined(left.shape, right.shape)
    assert shape is not None
    bound = max(left.bound * right.bound, left.bound + right.bound)
    op = m.one_of(["Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign", "Clip"])
    if op in ("Max", "Min") and m.opset < 12:
        raise DoesNotFit
    if op in ("Neg", "Abs", "Sign"):
        m.add(op, [left], left.shape, left.dtype, bound=left.bound)
    elif op == "Clip":
        if m.opset < 12:
            raise DoesNotFit
        m.add(
            op, [left, m.constant(-2, left.dtype), m.constant(3, left.dtype)], left.shape, left.dtype, bound=left.bound
        )
    else:
        m.add(op, [left, right], shape, left.dtype, bound=bound)


@part(3)
def divided_whole_numbers(m: Growing) -> None:
    left = m.pick(lambda tensor: tensor.dtype in ("int64", "int32"))
    divisor = m.integer(1, 5)
    op, extra = m.one_of([("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})])
    if op == "Mod" and not extra:
        m.add(op, [left, m.constant(divisor, left.dtype)], left.shape, left.dtype, bound=5.0, below=divisor)
    else:
        number = m.constant(divisor * m.one_of([1, -1]), left.dtype)
        m.add(op, [left, number], left.shape, left.dtype, bound=left.bound, **extra)


@part(6)
def comparison(m: Growing) -> None:
    left = m.pick(lambda tensor: tensor.dtype in ("float32", "int64", "int32") and not tensor.saturated)
    right = m.partner(left)
    op = m.one_of(["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"])
    if right.saturated or (m.opset < 11 and not left.is_float) or (op == "Equal" and m.opset < 11):
        raise DoesNotFit
    shape = joined(left.shape, right.shape)
    assert shape is not None
    m.add(op, [left, right], shape, "bool", bound=1.0)


@part(6)
def logic(m: Growing) -> None:
    left = m.pick(lambda tensor: tensor.dtype == "bool")
    op = m.one_of(["And", "Or", "Xor", "Not"])
    if op == "Not":
        m.add(op, [left], left.shape, "bool", bound=1.0)
        return
    right = m.partner(left)
    shape = joined(left.shape, right.shape)
    assert shape is not None
    m.add(op, [left, right], shape, "bool", bound=1.0)


@part(7)
def where(m: Growing) -> None:
    condition = m.pick(lambda tensor: tensor.dtype == "bool")
    fitting = [
        tensor
        for tensor in m.tensors
        if tensor.dtype in ("float32", "int64") and joined(tensor.shape, condition.shape) is not None
    ]
    yes: Tensor = m.one_of(fitting)
    no = m.partner(yes)
    shape = joined(yes.shape, condition.shape)
    assert shape is not None
    together = joined(shape, no.shape)
    if together is None:
        raise DoesNotFit
    pair = [yes, no] if m.chance(0.5) else [no, yes]
    m.add("Where", [condition, *pair], together, yes.dtype, bound=yes.bound + no.bound)


@part(4)
def cast(m: Growing) -> None:
    source = m.pick(lambda tensor: not tensor.saturated)
    code, dtype = m.one_of(
        [
            (TensorProto.FLOAT, "float32"),
            (TensorProto.INT64, "int64"),
            (TensorProto.INT32, "int32"),
            (TensorProto.BOOL, "bool"),
        ]
    )
    if source.is_float and dtype.startswith("int"):
        source = m.small(source, 1e5)
    m.add("Cast", [source], source.shape, dtype, bound=1.0 if dtype == "bool" else source.bound, to=code)


@part(1.5)
def doubles(m: Growing) -> None:
    """A stretch in float64 and back, over operators that ONNX Runtime has for it."""
    source = m.small(m.pick_float(), 20.0)
    wide = m.add("Cast", [source], source.shape, "float64", bound=source.bound, to=TensorProto.DOUBLE)
    for _ in range(m.integer(1, 2)):
        op = m.one_of(["Add", "Mul", "Sub", "Exp", "Relu", "Tanh", "Sqrt", "ReduceSum", "Neg", "Abs"])
        if op in ("Add", "Mul", "Sub"):
            wide = m.add(
                op, [wide, m.constant(np.float64(0.37).reshape(()))], wide.shape, "float64", bound=wide.bound * 2
            )
        elif op == "Sqrt":
            size = m.add("Abs", [wide], wide.shape, "float64", bound=wide.bound)
            safe = m.add(
                "Add", [size, m.constant(np.float64(0.25).reshape(()))], wide.shape, "float64", bound=wide.bound
            )
            wide = m.add(op, [safe], wide.shape, "float64", bound=wide.bound)
        elif op == "ReduceSum" and wide.rank:
            wide = m.reduced(op, wide, [m.axis(wide)], m.chance(0.5), bound=50 * wide.bound)
        elif op == "Exp" and wide.bound > 20:
            continue
        elif op != "ReduceSum":
            wide = m.add(op, [wide], wide.shape, "float64", bound=np.exp(wide.bound) if op == "Exp" else wide.bound)
    m.add("Cast", [wide], wide.shape, bound=wide.bound, to=TensorProto.FLOAT)


@part(1)
def quiet(m: Growing) -> None:
    """Operators that do nothing when a model is used, and what is told of single numbers."""
    source = m.pick_float()
    op = m.one_of(["Dropout", "IsNaN", "IsInf"])
    if op == "Dropout":
        m.add(op, [source], source.shape, bound=source.bound)
    else:
        m.add(op, [source], source.shape, "bool", bound=1.0)


_NARROW = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
}


@part(4)
def narrow_whole_numbers(m: Growing) -> None:
    """A stretch in another integer dtype, where sums and products wrap around, and back."""
    source = m.pick(lambda tensor: tensor.dtype in ("int64", "int32", "bool") and tensor.bound < 1e6)
    dtype = m.one_of(list(_NARROW))
    value = m.add("Cast", [source], source.shape, dtype, bound=1e9, to=_NARROW[dtype])
    for _ in range(m.integer(1, 2)):
        forms = ["Concat", "Transpose", "Equal", "Mod"]
        forms += ["Add", "Mul", "Sub"] if dtype in ("int32", "uint32", "uint64") and m.opset >= 14 else []
        forms += ["Max", "Min"] if m.opset >= 13 else []
        forms += ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"] if m.opset >= 18 else []
        forms += ["BitShift"] if dtype.startswith("u") else []
        op = m.one_of(forms)
        if op == "Concat":
            if not value.rank:
                continue
            shape = [value.shape[0] * 2, *value.shape[1:]]
            value = m.add(op, [value, value], shape, dtype, bound=1e9, axis=0)
        elif op == "Transpose":
            value = m.add(op, [value], value.shape[::-1], dtype, bound=1e9)
        elif op == "BitwiseNot":
            value = m.add(op, [value], value.shape, dtype, bound=1e9)
        elif op == "Equal":
            if m.opset >= 11:
                m.add(op, [value, m.constant(np.array(3, dtype))], value.shape, "bool", bound=1.0)
        elif op == "Mod":
            value = m.add(op, [value, m.constant(np.array(m.integer(1, 100), dtype))], value.shape, dtype, bound=100.0)
        else:
            number = m.constant(np.array(m.integer(1, 5 if op == "BitShift" else 90), dtype))
            extra = {"direction": m.one_of(["LEFT", "RIGHT"])} if op == "BitShift" else {}
            value = m.add(op, [value, number], value.shape, dtype, bound=1e9, **extra)
    m.add("Cast", [value], value.shape, "int64", bound=1e9, to=TensorProto.INT64)


@part(2)
def written_function(m: Growing) -> None:
    """GELU and SiLU as exporters write them."""
    source = m.small(m.pick_float(), 20.0)

    def number(value: float) -> str:
        return m.constant(np.full(m.one_of([(), (1,)]) if source.rank else (), value, np.float32))

    def on(op: str, *inputs: Tensor | str) -> Tensor:
        return m.add(op, inputs, source.shape, bound=source.bound + 2)

    form = m.one_of(["erf", "tanh", "silu", "softplus"])
    if form == "silu":
        on("Mul", *((source, on("Sigmoid", source)) if m.chance(0.5) else (on("Sigmoid", source), source)))
    elif form == "softplus":
        on("Log", on("Add", on("Exp", m.small(source, 8.0)), number(1.0)))
    elif form == "erf":
        cut = on("Div", source, number(2**0.5)) if m.chance(0.5) else on("Mul", source, number(0.5**0.5))
        more = on("Add", on("Erf", cut), number(1.0))
        if m.chance(0.5):
            on("Mul", on("Mul", source, more), number(0.5))
        else:
            on("Mul", on("Mul", number(0.5), source), more)
    else:
        cube = on("Mul", on("Mul", source, source), source)
        inner = on("Mul", on("Add", source, on("Mul", cube, number(0.044715))), number((2 / np.pi) ** 0.5))
        on("Mul", on("Mul", source, number(0.5)), on("Add", on("Tanh", inner), number(1.0)))


@part(2)
def again(m: Growing) -> None:
    """A node that is there already, under another name."""
    node = m.one_of(
        [node for node in m.nodes if len(node.output) == 1 and not any(e.HasField("g") for e in node.attribute)]
    )
    old = m.one_of([tensor for tensor in m.tensors if tensor.name == node.output[0]])
    name = f"v{len(m.nodes)}"
    copy = type(node)()
    copy.CopyFrom(node)
    copy.output[0] = name
    m.nodes.append(copy)
    m.made[name] = old.shape
    m.tensors.append(replace(old, name=name))


@part(2)
def affine(m: Growing) -> None:
    """A factor and a shift for each of the last dimension, constant."""
    source = m.small(m.pick_float(lambda tensor: tensor.rank > 0 and isinstance(tensor.shape[-1], int)), 100.0)
    width = source.shape[-1]
    assert isinstance(width, int)
    first, second = m.one_of([("Mul", "Add"), ("Add", "Mul"), ("Sub", "Mul"), ("Mul", "Mul"), ("Add", "Add")])
    value = m.add(first, [source, m.floats([width])], source.shape, bound=3 * source.bound + 3)
    m.add(second, [value, m.floats(m.one_of([[width], [1], []]))], source.shape, bound=9 * source.bound + 9)
