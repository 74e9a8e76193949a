"""Every elementary function, float32 and float64, with fused multiply-add and without: error, limits, special cases."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from rerank_engine.codegen.assembly import compile_assembly
from rerank_engine.codegen.elf import FlatImage
from rerank_engine.codegen.emitter import F32, F64, I64, POINTER, Emitter, i64
from rerank_engine.codegen.function import _flush_denormals
from rerank_engine.codegen.target import Target, host_architecture, host_target, named_target
from rerank_engine.image import ExecutableMemory
from rerank_engine.kernels import math as kernels
from rerank_engine.native_call import ENTRY

Array = NDArray[Any]

DTYPES = ("float32", "float64")
TARGETS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "cortex-a76", "apple-m1")
BINARY = ("power", "float_remainder", "float_modulo")
FUNCTIONS = tuple(name for name in kernels.__all__ if name != "zero")
EXTENDED_IS_DOUBLE = np.finfo(np.longdouble).eps > 1e-18

# What the docstring of rerank_engine.kernels.math states: units in the last place, float32 and float64.
LIMITS: dict[str, tuple[float, float]] = {
    "square_root": (0.5, 0.5),
    "reciprocal": (0.5, 0.5),
    "exponential": (1.1, 1.1),
    "exponential_minus_one": (1.6, 2.1),
    "sigmoid": (2.2, 1.8),
    "logarithm": (0.9, 0.9),
    "logarithm_one_plus": (0.9, 0.9),
    "softplus": (2.9, 1.8),
    "hyperbolic_sine": (0.51, 1.7),
    "hyperbolic_cosine": (0.51, 1.5),
    "hyperbolic_tangent": (1.2, 2.7),
    "inverse_hyperbolic_sine": (0.51, 1.8),
    "inverse_hyperbolic_cosine": (0.51, 2.7),
    "inverse_hyperbolic_tangent": (0.51, 2.0),
    "sine": (0.51, 2.4),
    "cosine": (0.51, 2.5),
    "tangent": (0.51, 3.8),
    "arcsine": (0.51, 2.7),
    "arccosine": (0.51, 1.3),
    "arctangent": (0.51, 1.9),
    "error_function": (1.9, 1.7),
    "power": (0.51, 1.3),
}


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _error_function(x: Array) -> Array:
    """A series whose terms have one sign near zero; beyond, one less the complement, which is small."""
    inner = np.clip(x, -3, 3)
    term = inner * np.exp(-inner * inner) * (2 / np.sqrt(np.arccos(x.dtype.type(-1))))
    total = term
    for index in range(1, 60):
        term = term * 2 * inner * inner / (2 * index + 1)
        total = total + term
    outer = np.where(np.abs(x) < 3, 3, np.abs(x)).astype(np.float64)
    complement = np.array([math.erfc(value) for value in outer], x.dtype)
    return np.where(np.abs(x) < 3, total, np.copysign(1 - complement, x))


REFERENCES: dict[str, Callable[..., Array]] = {
    "square_root": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "logarithm": np.log,
    "logarithm_one_plus": np.log1p,
    "softplus": _softplus,
    "hyperbolic_sine": np.sinh,
    "hyperbolic_cosine": np.cosh,
    "hyperbolic_tangent": np.tanh,
    "inverse_hyperbolic_sine": np.arcsinh,
    "inverse_hyperbolic_cosine": np.arccosh,
    "inverse_hyperbolic_tangent": np.arctanh,
    "sine": np.sin,
    "cosine": np.cos,
    "tangent": np.tan,
    "arcsine": np.arcsin,
    "arccosine": np.arccos,
    "arctangent": np.arctan,
    "error_function": _error_function,
    "power": np.power,
}


def _write(dtype: str, target: Target) -> FlatImage:
    """One image of all functions: ``entry(which, x, y, result, count)``; vectors first, the remainder lane by lane."""
    element, size = (F32, 4) if dtype == "float32" else (F64, 8)
    module = ir.Module()
    module.triple = target.triple
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64, POINTER, POINTER, POINTER, I64]), ENTRY)
    if target.calling_convention:
        function.calling_convention = target.calling_convention
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    which, left, right, result, count = function.args
    restore = _flush_denormals(e, target)
    end = function.append_basic_block("end")
    switch = e.b.switch(which, end)

    def part(name: str, width: int) -> Callable[[ir.Value, list[ir.Value]], None]:
        def body(index: ir.Value, _: list[ir.Value]) -> None:
            place = e.b.mul(index, i64(size))
            sources = (left, right) if name in BINARY else (left,)
            arguments = [e.load(e.at(source, place), element, width) for source in sources]
            value = getattr(kernels, name)(e, *arguments)
            if name in ("is_nan", "is_inf"):
                value = e.b.uitofp(value, arguments[0].type)
            assert value.type == arguments[0].type
            e.store(value, e.at(result, place))

        return body

    for number, name in enumerate(FUNCTIONS):
        block = function.append_basic_block(name)
        switch.add_case(i64(number), block)
        e.b.position_at_end(block)
        rest, _ = e.loop(0, count, e.lanes, part(name, e.lanes))
        e.loop(rest, count, 1, part(name, 1))
        e.b.branch(end)
    e.b.position_at_end(end)
    restore()
    e.b.ret_void()
    return compile_assembly(re.sub(r"^(define [^\n]*)$", r'\1 "no-builtins"', str(module), flags=re.MULTILINE), target)


class Kernels:
    """The functions of one dtype for one target, over arrays."""

    def __init__(self, dtype: str, target: Target) -> None:
        image = _write(dtype, target)
        self.dtype, self.lanes = np.dtype(dtype), target.lanes
        self.tiny = float(np.finfo(self.dtype).tiny)
        self.memory = ExecutableMemory(image.code)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int64)
        self.entry = kind(self.memory.address + image.entries[ENTRY])

    def __call__(self, name: str, x: Array, y: Array | None = None) -> Array:
        x = np.ascontiguousarray(x, self.dtype)
        y = x if y is None else np.ascontiguousarray(y, self.dtype)
        result = np.empty_like(x)
        self.entry(FUNCTIONS.index(name), x.ctypes.data, y.ctypes.data, result.ctypes.data, len(x))
        return result

    def flush(self, array: Array) -> Array:
        """Zero in place of what is below the smallest normal number."""
        return np.where(np.abs(array) < self.tiny, np.copysign(0, array), array).astype(self.dtype)

    def random_bits(self, count: int, seed: int) -> Array:
        """Every exponent is as likely as any other; one NaN for all of them."""
        bits = np.random.default_rng(seed).integers(0, 256, count * self.dtype.itemsize, np.uint8)
        numbers = bits.view(self.dtype)
        return self.flush(np.where(np.isnan(numbers), self.dtype.type(np.nan), numbers))

    def same(self, actual: Array, expected: Array) -> Array:
        """Equal, the signs of zeros too; NaN is NaN."""
        equal = (actual == expected) & (np.signbit(actual) == np.signbit(expected))
        return equal | (np.isnan(actual) & np.isnan(expected))


@cache
def _compiled(dtype: str, cpu: str) -> Kernels:
    baseline = "x86-64" if host_architecture() == "x86_64" else "aarch64"
    return Kernels(dtype, host_target() if cpu == "host" else named_target(baseline))


@pytest.fixture(params=[(dtype, cpu) for dtype in DTYPES for cpu in ("host", "baseline")], ids="-".join)
def compiled(request: pytest.FixtureRequest) -> Kernels:
    return _compiled(*request.param)


def arguments(kernels_: Kernels) -> Array:
    """Random bits; every size near zero; the ranges where functions change; near multiples of a quarter turn."""
    random = np.random.default_rng(7)
    count = 20_000
    parts: list[Array] = [random.uniform(-limit, limit, count) for limit in (1, 8, 100, 720, 1e5)]
    parts.append(np.exp2(random.uniform(-40, 10, count)) * random.choice([-1, 1], count))
    parts.append(1 + random.normal(0, 1e-3, count))
    parts.append(random.integers(-(2**21), 2**21, count) * (np.pi / 2))
    return np.concatenate([kernels_.random_bits(4 * count, 1), kernels_.flush(np.concatenate(parts))])


def check_error(kernels_: Kernels, name: str, inputs: tuple[Array, ...], limit: float) -> None:
    wide = np.float64 if kernels_.dtype == np.float32 else np.longdouble
    actual = kernels_(name, *inputs)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](*(array.astype(wide) for array in inputs))
        rounded = exact.astype(kernels_.dtype)
    normal = np.isfinite(rounded) & (np.abs(exact) >= kernels_.tiny)
    error = np.abs(actual[normal].astype(wide) - exact[normal]) / np.spacing(np.abs(rounded[normal])).astype(wide)
    worst = error.argmax()
    slack = 1.0 if kernels_.dtype == np.float64 and EXTENDED_IS_DOUBLE else 0.0
    places = [array[normal][worst] for array in inputs]
    assert normal.sum() > 1000
    assert error[worst] <= limit + slack, f"{name} is {error[worst]:.3f} ULP off at {places}"
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(rounded), err_msg=name)
    np.testing.assert_array_equal(actual[np.isinf(rounded)], rounded[np.isinf(rounded)], err_msg=name)
    assert not actual[np.abs(exact) < kernels_.tiny].any(), f"{name}: a result below the smallest normal must be zero"


@pytest.mark.parametrize("name", [name for name in LIMITS if name != "power"])
def test_error(compiled: Kernels, name: str) -> None:
    check_error(compiled, name, (arguments(compiled),), LIMITS[name][DTYPES.index(compiled.dtype.name)])


def test_error_at_the_ends_of_the_range(compiled: Kernels) -> None:
    """Thousands of neighbours of the first infinite and the last normal result."""
    information = np.finfo(compiled.dtype)
    top, bottom = np.log(information.max), np.log(information.tiny)
    limits = {name: LIMITS[name][DTYPES.index(compiled.dtype.name)] for name in LIMITS}
    for name, end in (
        ("exponential", top),
        ("exponential", bottom),
        ("exponential_minus_one", top),
        ("sigmoid", bottom),
        ("softplus", bottom),
        ("hyperbolic_sine", top + np.log(compiled.dtype.type(2))),
        ("hyperbolic_cosine", -top - np.log(compiled.dtype.type(2))),
    ):
        x = (end + np.arange(-4000, 4000) * np.spacing(end)).astype(compiled.dtype)
        check_error(compiled, name, (x,), limits[name])


SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5, -2.5, 7.0, 1e30)


def special(kernels_: Kernels) -> Array:
    information = np.finfo(kernels_.dtype)
    whole = 2.0**information.nmant
    sizes = [information.max, information.tiny, whole, whole + 1, 2 * whole, whole / 2 + 0.5, 0.49999997]
    return np.array([*SPECIAL, *sizes, *(-size for size in sizes)], kernels_.dtype)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name not in ("power", "error_function")])
def test_special_values_and_signs_of_zero(compiled: Kernels, name: str) -> None:
    x = special(compiled)
    with np.errstate(all="ignore"):
        expected = compiled.flush(REFERENCES[name](x.astype(np.longdouble)).astype(compiled.dtype))
    actual = compiled(name, x)
    np.testing.assert_allclose(actual, expected, rtol=4 * np.finfo(compiled.dtype).eps, err_msg=name)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers], err_msg=name)


def test_error_function_ends_at_one_and_keeps_the_sign(compiled: Kernels) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 30.0, -30.0, 6.0, -6.0])
    expected = np.array([0.0, -0.0, 1, -1, np.nan, 1, -1, 1, -1])
    assert compiled.same(compiled("error_function", x), expected).all()


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("floor", np.floor),
        ("ceiling", np.ceil),
        ("truncate", np.trunc),
        ("round_half_even", np.rint),
        ("sign", np.sign),
        ("absolute", np.abs),
        ("negative", np.negative),
        ("square_root", np.sqrt),
        ("is_nan", np.isnan),
        ("is_inf", np.isinf),
    ],
)
def test_exact_functions_bit_for_bit(compiled: Kernels, name: str, reference: Callable[[Array], Array]) -> None:
    random = np.random.default_rng(3)
    halves = random.integers(-1000, 1000, 30_000) / 2
    parts = [special(compiled), compiled.random_bits(100_000, 2), random.uniform(-99, 99, 30_000), halves]
    x = np.concatenate(parts).astype(compiled.dtype)
    with np.errstate(all="ignore"):
        expected = reference(x).astype(compiled.dtype)
    same = compiled.same(compiled(name, x), expected)
    assert same.all(), f"{name} differs at {x[~same][:5]}"


def test_signed_infinities() -> None:
    module = ir.Module()
    vector = ir.VectorType(F64, 4)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [vector]), "f")
    e = Emitter(ir.IRBuilder(function.append_basic_block()), 4)
    (x,) = function.args
    texts = [
        str(kernels.is_inf(e, x, positive=positive, negative=negative))
        for positive, negative in ((True, False), (False, True), (False, False))
    ]
    assert "0x7ff0000000000000" in texts[0]
    assert "0xfff0000000000000" in texts[1]
    assert "fcmp" not in texts[2]


def grid(kernels_: Kernels) -> tuple[Array, Array]:
    """Every special value with every other."""
    x, y = np.meshgrid(special(kernels_), special(kernels_))
    return x.ravel(), y.ravel()


def test_power_in_special_cases(compiled: Kernels) -> None:
    x, y = grid(compiled)
    with np.errstate(all="ignore"):
        expected = compiled.flush(np.power(x.astype(np.longdouble), y.astype(np.longdouble)).astype(compiled.dtype))
    actual = compiled("power", x, y)
    np.testing.assert_allclose(actual, expected, rtol=4 * np.finfo(compiled.dtype).eps)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers])


def test_power_error(compiled: Kernels) -> None:
    random = np.random.default_rng(4)
    count = 60_000
    limit = LIMITS["power"][DTYPES.index(compiled.dtype.name)]
    x, y = np.exp(random.uniform(-5, 5, count)), random.uniform(-9, 9, count)
    check_error(compiled, "power", (x.astype(compiled.dtype), y.astype(compiled.dtype)), limit)
    x, y = 1 + random.normal(0, 1e-6, count), random.normal(0, 1e6, count)
    check_error(compiled, "power", (x.astype(compiled.dtype), y.astype(compiled.dtype)), limit)
    check_error(compiled, "power", (compiled.random_bits(count, 5), compiled.random_bits(count, 6)), limit)


def test_power_at_the_ends_of_the_range(compiled: Kernels) -> None:
    """The C library's own extended power loses up to half a unit there."""
    random = np.random.default_rng(5)
    information = np.finfo(compiled.dtype)
    ends = random.choice([float(np.log(information.max)), float(np.log(information.tiny))], 40_000)
    ends += random.normal(size=ends.size) * random.choice([1e-12, 1e-6, 1.0], ends.size)
    x = np.exp(random.uniform(-20, 20, ends.size)).astype(compiled.dtype)
    y = (ends / np.log(x)).astype(compiled.dtype)
    actual = compiled("power", x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        rounded = compiled.flush(exact.astype(compiled.dtype))
    inside = (exact > compiled.tiny * 1.00001) & (exact < information.max * 0.99999)
    assert inside.sum() > 1000
    assert (np.abs(actual[inside] - rounded[inside]) <= 2 * np.spacing(rounded[inside])).all()
    assert not np.isnan(actual).any()
    assert np.isinf(actual[exact / 1.00001 > information.max]).all()
    assert not actual[exact < compiled.tiny * 0.99999].any()


def test_a_power_that_is_a_float_is_that_float(compiled: Kernels) -> None:
    exact_below = 2 ** (np.finfo(compiled.dtype).nmant + 1)
    pairs = [
        (base, exponent) for base in range(-99, 100) for exponent in range(34) if abs(base) ** exponent < exact_below
    ]
    x, y = np.array(pairs, compiled.dtype).T
    expected = np.array([base**exponent for base, exponent in pairs], compiled.dtype)
    np.testing.assert_array_equal(compiled("power", x, y), expected)
    roots = np.arange(1, 2000).astype(compiled.dtype)
    np.testing.assert_array_equal(compiled("power", roots * roots, np.full_like(roots, 0.5)), roots)
    top = np.finfo(compiled.dtype).maxexp
    exponents = np.arange(2 - top, top).astype(compiled.dtype)
    np.testing.assert_array_equal(
        compiled("power", np.full_like(exponents, 2), exponents),
        np.ldexp(compiled.dtype.type(1), exponents.astype(int)),
    )


def test_remainders_bit_for_bit(compiled: Kernels) -> None:
    """Any sizes, so that quotients of a few and of hundreds of bits occur, down to the smallest normal divisors."""
    random = np.random.default_rng(6)
    count = 20_000
    low = np.log(compiled.tiny)
    x, y = (
        np.concatenate(parts).astype(compiled.dtype)
        for parts in zip(
            grid(compiled),
            (compiled.random_bits(count, 7), compiled.random_bits(count, 8)),
            (random.uniform(-1e4, 1e4, count), random.uniform(-10, 10, count)),
            (random.integers(-1000, 1000, count), random.integers(-30, 30, count)),
            (np.exp(random.uniform(-60, 80, count)), -np.exp(random.uniform(-60, 80, count))),
            (np.exp(random.uniform(low, low + 60, count)), np.exp(random.uniform(low, low + 20, count))),
            strict=True,
        )
    )
    x, y = compiled.flush(x), compiled.flush(y)
    with np.errstate(all="ignore"):
        remainder = compiled.flush(np.fmod(x, y))
        # np.mod with a remainder that flushes to zero.
        modulo = np.where((remainder < 0) != (y < 0), remainder + y, remainder)
        modulo = compiled.flush(np.where(remainder == 0, np.copysign(0, y), modulo))
    for name, expected in (("float_remainder", remainder), ("float_modulo", modulo)):
        same = compiled.same(compiled(name, x, y), expected)
        assert same.all(), f"{name} differs at {x[~same][:5]}, {y[~same][:5]}"
    plain = np.abs(x) < 1e4
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(modulo[plain & (np.abs(y) > 1e-3)], np.mod(x, y)[plain & (np.abs(y) > 1e-3)])


def test_angles_of_any_size() -> None:
    """Known values; 5.3e255 is among the floats nearest to a multiple of pi / 2, so all its own bits must be used."""
    functions = _compiled("float64", "host")
    x = np.array([1e22, 5.319372648326541e255, 2.0**1023, -1e22, np.inf, np.nan])
    nan = math.nan
    sine = [-0.8522008497671888, 1.0, 0.5631277798508840, 0.8522008497671888, nan, nan]
    cosine = [0.5232147853951389, -4.687165924254628e-19, -0.8263698346141480, 0.5232147853951389, nan, nan]
    np.testing.assert_allclose(functions("sine", x), sine, rtol=4e-16)
    np.testing.assert_allclose(functions("cosine", x), cosine, rtol=4e-16)


def test_a_lane_alone_has_the_bits_of_the_vector(compiled: Kernels) -> None:
    x = np.concatenate([special(compiled), compiled.random_bits(400, 9), np.linspace(-9, 9, 300)])
    x = x[: len(x) // compiled.lanes * compiled.lanes].astype(compiled.dtype)
    y = np.ascontiguousarray(x[::-1])
    for name in FUNCTIONS:
        whole = compiled(name, x, y)
        alone = np.concatenate([compiled(name, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
        assert compiled.same(whole, alone).all(), name


def test_sigmoid_keeps_the_order_of_logits(compiled: Kernels) -> None:
    random = np.random.default_rng(10)
    for x in (np.linspace(-12, 12, 4000), np.linspace(-12, 12, 100_000), np.sort(random.uniform(-12, 12, 4000))):
        assert (np.diff(compiled("sigmoid", x.astype(compiled.dtype))) >= 0).all()
    for start in (-11.9, -1.0, -1e-3, 1e-6, 0.3, 0.9999, 5.0):
        first = compiled.dtype.type(start)
        neighbours = np.sort(first + np.arange(20_000) * np.spacing(first)).astype(compiled.dtype)
        assert (np.diff(compiled("sigmoid", neighbours)) >= 0).all(), f"falls near {start}"


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_target_needs_a_library(dtype: str, cpu: str) -> None:
    """An external symbol would stop the layout of the image."""
    image = _write(dtype, named_target(cpu))
    assert len(image.code) > 10_000
    assert 0 <= image.entries[ENTRY] < len(image.code)
