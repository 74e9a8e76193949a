"""Cases of the elementwise operators: every dtype, every form of broadcasting, constants, values at the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rerank_engine.graph import DTYPES

Case = Callable[[Any], None]

SIZES = (1, 3, 5, 15, 16, 17, 31, 33, 63, 65)
FEW_SIZES = (1, 17, 31)
"""For operators that share their loops with one that is tested at all sizes: each kind of remainder."""

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = tuple(DTYPES)


def _number(dtype: str) -> Any:
    """A constant of one element that is not symmetric to zero where the dtype has a sign."""
    return {"float32": -0.75, "float64": -0.75, "bool": True}.get(dtype, 3 if dtype.startswith("u") else -3)


def one_input(op: str, dtypes: Sequence[str], sizes: Sequence[int] = FEW_SIZES, **attributes: Any) -> Case:
    """Sizes, ranks 0 to 3, a scaled candidate dimension and one in the middle, and no candidates at all."""

    def case(b: Any) -> None:
        for index, dtype in enumerate(dtypes):
            shapes: list[tuple[Any, ...]] = [("N", size) for size in (sizes if index == 0 else (17,))]
            if index == 0:
                shapes += [("N", 3, 5), (("N", 3), 5), (("N", 2),), (17,), (3, 5), ("N", 1, 1), ("N", 4, 0)]
                shapes += [(3, "N"), (2, "N", 3)]
            shapes += [("N",), ()]
            for shape in shapes:
                b.output(b.node(op, b.input(dtype, *shape), **attributes))
            b.output(b.node(op, b.constant(_number(dtype), dtype), **attributes))
            b.output(b.node(op, b.constant(np.full((1, 3), _number(dtype)), dtype), **attributes))

    return case


FORMS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    (("N",), ("N",)),
    (("N", 1), ("N", 17)),
    (("N", 17), ("N", 1)),
    (("N", 17), (17,)),
    ((17,), ("N", 17)),
    (("N", 1), (17,)),
    (("N", 3, 1), (5,)),
    (("N", 1, 5), ("N", 3, 1)),
    (("N", 1, 1), (3, 5)),
    (("N", 3, 5), (3, 1)),
    (("N", 2, 1, 3), ("N", 1, 5, 1)),
    ((("N", 3), 5), (("N", 3), 1)),
    ((("N", 3),), ()),
    (("N", 5), ()),
    ((), ("N", 5)),
    ((4, 1), (1, 5)),
    ((), ()),
    ((1, 1, 1), ("N", 1, 2)),
    (("N", 0), (1,)),
    (("N", 1), ("N",)),
    ((3, "N"), ("N",)),
    ((2, 1, "N"), ("N", 1)),
    ((3, 1), ("N",)),
]


def two_inputs(op: str, dtypes: Sequence[str], *, full: bool = False, **attributes: Any) -> Case:
    """Sizes and forms of broadcasting (``full``: all of them), constants of one element included."""

    def case(b: Any) -> None:
        def add(left: str, right: str) -> None:
            b.output(b.node(op, left, right, **attributes))

        for index, dtype in enumerate(dtypes):
            for size in SIZES if full and index == 0 else (17,):
                add(b.input(dtype, "N", size), b.input(dtype, "N", size))
            for left, right in (FORMS if full else FORMS[::4]) if index == 0 else FORMS[1:2]:
                add(b.input(dtype, *left), b.input(dtype, *right))
            number = _number(dtype)
            x = b.input(dtype, "N", 9)
            add(x, b.constant(number, dtype))
            add(b.constant(np.full((1, 1), number), dtype), x)
            add(b.constant(number, dtype), b.constant(number, dtype))
            add(b.constant(np.arange(9) % 2, dtype), x)
            add(x, x)

    return case


def divisions(op: str, options: Sequence[dict[str, Any]]) -> Case:
    """Small and extreme divisors, zero and minus one among them, computed and constant."""

    def case(b: Any) -> None:
        for attributes in options:
            two_inputs(op, FLOATS, **attributes)(b)
            for dtype in INTEGERS:
                b.output(b.node(op, b.input(dtype, "N", 17), b.input(dtype, "N", 1), **attributes))
                limits = np.iinfo(DTYPES[dtype])
                edges = np.array([limits.min, limits.max, 0, 1, 2, 7, limits.max - 1], DTYPES[dtype])
                if limits.min < 0:
                    edges = np.append(edges, np.array([-2, -7, limits.min + 1, -1], DTYPES[dtype]))
                left, right = (part.reshape(-1) for part in np.meshgrid(edges, edges))
                b.output(b.node(op, b.constant(left, dtype), b.constant(right, dtype), **attributes))
                x = b.input(dtype, "N", 5)
                for divisor in edges[[2, 5, -1]]:
                    b.output(b.node(op, x, b.constant(divisor, dtype), **attributes))

    return case


def power(b: Any) -> None:
    two_inputs("Pow", FLOATS)(b)
    exponents = [0.0, -0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, -2.0, 1.5, np.inf, -np.inf, np.nan, 1e30]
    bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e10, -1e10]
    left, right = (part.reshape(-1) for part in np.meshgrid(bases, exponents))
    for dtype in FLOATS:
        b.output(b.node("Pow", b.constant(left, dtype), b.constant(right, dtype)))
        x = b.input(dtype, "N", 7)
        for exponent in (-0.0, 0.5, 3.0, np.inf, np.nan):
            b.output(b.node("Pow", x, b.constant(exponent, dtype)))
    for dtype in INTEGERS:
        b.output(b.node("Pow", b.input(dtype, "N", 17), b.input(dtype, "N", 17)))
        small = np.array([0, 1, 2, 3, 5, 7, 40, 63, 64, 100] + ([-1, -2, -3] if dtype in SIGNED else []))
        left, right = (part.reshape(-1) for part in np.meshgrid(small, small))
        b.output(b.node("Pow", b.constant(left, dtype), b.constant(right, dtype)))


def shift(b: Any) -> None:
    for left in (0, 1):
        for dtype in INTEGERS:
            x = b.input(dtype, "N", 17)
            width = DTYPES[dtype].itemsize * 8
            for count in (3, width, -1 if dtype in SIGNED else width + 1):
                b.output(b.node("BitShift", x, b.constant(count, dtype), left=left))
            b.output(b.node("BitShift", x, b.input(dtype, "N", 1, domain="7"), left=left))
            b.output(b.node("BitShift", x, b.input(dtype, "N", 17), left=left))


def clip(b: Any) -> None:
    infinity = float("inf")
    bounds = [(-1.0, 1.0), (0.0, infinity), (-infinity, 0.5), (-infinity, infinity), (1.0, -1.0)]
    bounds += [(infinity, infinity), (-infinity, -infinity), (0.0, 3.4028234663852886e38)]
    for dtype in FLOATS:
        x = b.input(dtype, "N", 17)
        for low, high in bounds:
            b.output(b.node("Clip", x, low=low, high=high), b.node("Clip", b.input(dtype, 3), low=low, high=high))
        b.output(b.node("Clip", x))


def where(b: Any) -> None:
    for dtype in ALL:
        for size in FEW_SIZES:
            b.output(b.node("Where", b.input("bool", "N", size), *(b.input(dtype, "N", size) for _ in range(2))))
        forms = [(("N", 1), (5,), ()), ((3, 1), ("N", 3, 5), (5,)), (("N",), (), ("N",)), ((), (2,), (2, 1))]
        for condition, yes, no in forms:
            b.output(b.node("Where", b.input("bool", *condition), b.input(dtype, *yes), b.input(dtype, *no)))
        b.output(b.node("Where", b.constant(True, "bool"), b.input(dtype, "N", 3), b.constant(1, dtype)))


def cast(b: Any) -> None:
    numbers = [0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, -1.5, 127.0, 127.9, 128.0, -128.0, -128.9, -129.0, 255.9, 256.0]
    numbers += [65535.9, 65536.0, 2147483647.0, 2147483648.0, -2147483648.0, -2147483904.0, 4294967040.0, 4294967296.0]
    numbers += [9.2233715e18, 9.223372e18, -9.223372e18, -9.3e18, 1.8446743e19, 1.8446744073709552e19, 1e30, -1e30]
    numbers += [np.nan, np.inf, -np.inf, 16777217.0, 9007199254740993.0, 3.5e38, 1e300]
    for source in ALL:
        edges = np.array([0, 1]) if source == "bool" else np.array(numbers)
        if source in INTEGERS:
            limits = np.iinfo(DTYPES[source])
            near = [limits.min, limits.max, limits.max - 1, 0, 1, limits.max // 2, limits.max // 2 + 1, 16777217]
            edges = np.array([number for number in near if number <= limits.max], DTYPES[source])
        with np.errstate(over="ignore"):
            fixed = b.constant(edges.astype(DTYPES[source]), source)
        x = b.input(source, "N", 17)
        for target in ALL:
            b.output(b.node("Cast", x, to=target), b.node("Cast", fixed, to=target))
        b.output(b.node("Cast", b.constant(_number(source), source), to="float64"))


def bit_cast(b: Any) -> None:
    for source in ALL:
        for target in ALL:
            if "bool" not in (source, target) and DTYPES[source].itemsize == DTYPES[target].itemsize:
                # Floats that are only passed on keep their bits; a denormal would count as zero in the comparison.
                x = b.input(source, "N", 17, domain="plain")
                b.output(b.node("BitCast", x, to=target))


def expand(b: Any) -> None:
    for dtype in ALL:
        b.output(b.node("Expand", b.input(dtype, "N", 1), shape=("N", 17)))
        b.output(b.node("Expand", b.input(dtype), shape=(("N", 2), 3)))
    for dtype in ("float32", "float64", "int16", "bool"):
        b.output(b.node("Expand", b.input(dtype, 17), shape=("N", 17)))
        b.output(b.node("Expand", b.input(dtype, 3, 1), shape=("N", 3, 5)))
        b.output(b.node("Expand", b.input(dtype, 3, 1), shape=(2, 3, 5)))
        b.output(b.node("Expand", b.constant(1, dtype), shape=(7,)))
        b.output(b.node("Expand", b.constant(1, dtype), shape=()))
        b.output(b.node("Expand", b.input(dtype, "N", 1), shape=("N", 0)))
        b.output(b.node("Expand", b.input(dtype, "N"), shape=(3, "N")))
        b.output(b.node("Expand", b.input(dtype, 3, 1), shape=(3, "N")))


def leaky(b: Any) -> None:
    for alpha in (0.01, 0.3, 0.0, -0.5, 2.0):
        b.output(b.node("LeakyRelu", b.input("float32", "N", 17), alpha=alpha))
    one_input("LeakyRelu", FLOATS)(b)


def prelu(b: Any) -> None:
    for dtype in NUMBERS:
        for slope in (("N", 17), ("N", 1), (17,), ()):
            b.output(b.node("PRelu", b.input(dtype, "N", 17), b.input(dtype, *slope)))
        b.output(b.node("PRelu", b.input(dtype, "N", 17), b.constant(_number(dtype), dtype)))


def elu(b: Any) -> None:
    for alpha in (1.0, 0.3, 0.0, -0.5, 2.0):
        b.output(b.node("Elu", b.input("float32", "N", 17), alpha=alpha))
    one_input("Elu", FLOATS)(b)


def gelu(b: Any) -> None:
    for approximate in ("none", "tanh"):
        one_input("Gelu", FLOATS, approximate=approximate)(b)


ONE_FLOAT = (
    *("Exp", "Log", "Erf", "Sqrt", "Floor", "Ceil", "Round", "Softplus"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
    *("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
)

CASES: dict[str, Case] = {
    "Add": two_inputs("Add", NUMBERS, full=True),
    **{op: two_inputs(op, NUMBERS) for op in ("Sub", "Mul", "Max", "Min")},
    **{op: two_inputs(op, NUMBERS) for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    "Equal": two_inputs("Equal", ALL),
    **{op: two_inputs(op, ("bool", *INTEGERS)) for op in ("And", "Or", "Xor")},
    "Not": one_input("Not", ("bool", *INTEGERS)),
    **{op: one_input(op, FLOATS) for op in ONE_FLOAT},
    **{op: one_input(op, NUMBERS) for op in ("Abs", "Neg", "Sign")},
    "Sigmoid": one_input("Sigmoid", FLOATS, SIZES),
    "Relu": one_input("Relu", (*FLOATS, *SIGNED)),
    "Identity": one_input("Identity", ALL),
    "Div": divisions("Div", [{}]),
    "Mod": divisions("Mod", [{}, {"fmod": 1}]),
    "Pow": power,
    "BitShift": shift,
    "Clip": clip,
    "Where": where,
    "Cast": cast,
    "BitCast": bit_cast,
    "Expand": expand,
    "LeakyRelu": leaky,
    "PRelu": prelu,
    "Elu": elu,
    "Gelu": gelu,
}

# Relative and absolute. Where the exact Gelu vanishes, it is the product of a small share and x: the share is exact to
# the last place of one.
TOLERANCES = {"Gelu": (5e-7, 5e-7)}
