"""Matrix products: shapes around every tile and vector edge, batched forms, fused activations, row tails, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rerank_engine.codegen.target import host_target, named_target
from rerank_engine.errors import UnsupportedOperatorError
from rerank_engine.kernels.gemm import MANY, Tiling, choose_tiling, legal_tilings, uses_dot
from rerank_engine.ops import OPERATORS
from rerank_engine.ops.matmul import FUSED_ACTIVATIONS
from rerank_engine.packing import pack
from rerank_engine.plan import make_plan

EDGES = (1, 2, 3, 16, 17, 63, 64, 65, 130)
ROW_COUNTS = (*range(18), 22, 27, 28, 29, 50, 128, 131, 300)
TOLERANCE = (2e-6, 2e-5)


def check(tools: Any, b: Any, counts: tuple[int, ...] = ROW_COUNTS, target: Any = None) -> None:
    graph = b.finish()
    compiled = tools.Compiled(graph, target)
    for candidates in counts:
        feeds = b.feeds(candidates, seed=candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{graph.values[name]} at N={candidates}", *TOLERANCE)
    tools.assert_rows_alone(compiled, b.feeds(131, seed=1), (0, 13, 14, 127, 128, 130))


def weight(b: Any, *shape: int, deviation: float = 0.5) -> str:
    random = np.random.default_rng(sum(shape))
    return str(b.constant(random.normal(0, deviation, shape)))


@pytest.mark.parametrize("shift", [0, 4])
def test_constant_weights_of_every_edge(tools: Any, shift: int) -> None:
    b = tools.GraphBuilder()
    for index, inner in enumerate(EDGES):
        columns = EDGES[(index * 2 + shift) % len(EDGES)]
        x = b.input("float32", "N", inner, domain="plain")
        bias = [weight(b, columns)] if index % 2 else []
        b.output(b.node("MatMul", x, weight(b, inner, columns), *bias))
    check(tools, b)


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "cortex-a76"])
def test_a_tile_fits_its_registers(cpu: str) -> None:
    target = named_target(cpu)
    for columns in range(140):
        tilings = legal_tilings(columns, target.lanes, target.registers)
        assert tilings[0] == choose_tiling(columns, target.lanes, target.registers)
        assert len(set(tilings)) == len(tilings)
        for tiling in tilings:
            for rows in (tiling.many_rows, tiling.few_rows):
                assert rows >= 1
                assert tiling.vectors >= 1
                assert rows * tiling.vectors + tiling.vectors + 1 <= target.registers


@pytest.mark.parametrize("cpu", ["", "x86-64-v3", "x86-64-v2"])
def test_every_tiling_gives_the_same_bits(tools: Any, cpu: str) -> None:
    """What a search may pick changes the time and no number; at every edge of rows, columns and depth."""
    target = named_target(cpu) if cpu else host_target()
    shapes = [(0, 3), (31, 63), (33, 130), (258, 48)]

    def build() -> Any:
        b = tools.GraphBuilder()
        for number, (inner, columns) in enumerate(shapes):
            x = b.input("float32", "N", inner, domain="plain")
            bias = [weight(b, columns)] if number % 2 else []
            b.output(b.node("MatMul", x, weight(b, inner, columns), *bias, activation="Relu" if number % 3 else ""))
        left, right = b.input("float32", "N", 5, 33, domain="plain"), b.input("float32", "N", 33, 65, domain="plain")
        return b.output(b.node("MatMul", left, right))

    b = build()
    graph = b.finish()
    plain = tools.Compiled(graph, target)
    counts = (0, 1, 2, MANY - 1, MANY, MANY + 1, 50, 131)
    feeds = {candidates: b.feeds(candidates, seed=candidates) for candidates in counts}
    want = {candidates: plain(feeds[candidates]) for candidates in counts}
    expected = {candidates: tools.expect(graph, feeds[candidates]) for candidates in counts}
    lists = [legal_tilings(columns, target.lanes, target.registers) for _, columns in [*shapes, (33, 65)]]
    for place in range(max(map(len, lists))):
        # Each variant once for many rows, with another number of rows of the same width for few.
        tilings = {}
        for shape, choices in zip(shapes, lists, strict=False):
            one = choices[place % len(choices)]
            few = [other.few_rows for other in choices if other.vectors == one.vectors]
            tilings[shape] = Tiling(one.vectors, one.many_rows, few[(place + 1) % len(few)])
        compiled = tools.Compiled(graph, target, tilings)
        for candidates in counts:
            for name, array in compiled(feeds[candidates]).items():
                np.testing.assert_array_equal(array, want[candidates][name], f"{tilings} at N={candidates}")
                tools.assert_close(array, expected[candidates][name], f"{name} at N={candidates}", *TOLERANCE)


def test_one_and_two_columns_go_along_the_depth() -> None:
    assert [uses_dot(columns) for columns in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize("cpu", ["", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize(
    "widths", [(1, 1), (16, 16), (128, 13), (3, 0, 40), (250, 7), (100, 200, 300), (5, 5, 5, 5, 5, 5, 5, 5, 5, 5)]
)
def test_joined_columns_are_read_where_they_lie(tools: Any, widths: tuple[int, ...], cpu: str) -> None:
    """The bits are those of a product over stored columns; of constants, of a reshaped value and of a list's too."""

    def build(*, is_stored: bool) -> Any:
        b = tools.GraphBuilder()
        inner = sum(widths)
        for shape in (("N",), ("N", 3)):
            parts = [b.input("float32", *shape, width, domain="plain") for width in widths]
            parts[0] = b.node("Tanh", parts[0])
            parts[-1] = b.node("Reshape", b.node("Neg", parts[-1]), shape=(*shape, widths[-1]))
            joined = b.node("Concat", *parts, axis=len(shape) if len(shape) > 1 else -1)
            for columns, bias in ((37, True), (64, False)):
                if columns == 64:
                    joined = b.node("Concat", *parts, axis=len(shape))
                extra = [weight(b, columns)] if bias else []
                matrix = weight(b, inner, columns, deviation=inner**-0.5)
                b.output(b.node("MatMul", joined, matrix, *extra, activation="Relu" if bias else ""))
                if is_stored:
                    b.output(joined)
        return b

    target = named_target(cpu) if cpu else None
    b, other = build(is_stored=False), build(is_stored=True)
    check(tools, b, (0, 1, 2, 15, 16, 50, 131), target)
    assert [step.label for step in make_plan(b.graph).steps].count("Concat+MatMul") == 4
    assert "Concat+MatMul" not in [step.label for step in make_plan(other.finish()).steps]
    feeds = b.feeds(50, seed=3)
    apart = tools.Compiled(other.graph, target)(dict(zip(other.graph.inputs, feeds.values(), strict=True)))
    together = tools.Compiled(b.graph, target)(feeds)
    for name, array in together.items():
        np.testing.assert_array_equal(array, apart[name], name)


def test_columns_that_others_read_or_that_are_no_columns_are_joined_first(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, y = b.input("float32", "N", 4, domain="plain"), b.input("float32", "N", 6, domain="plain")
    joined = b.node("Concat", x, y, axis=1)
    b.output(b.node("MatMul", joined, weight(b, 10, 5)), b.node("Relu", joined))  # two readers
    rows = b.node("Concat", x, x, axis=0)
    b.output(b.node("MatMul", rows, weight(b, 4, 5)))  # rows under each other
    narrow = b.node("Concat", x, y, axis=1)
    b.output(b.node("MatMul", narrow, weight(b, 10, 2)))  # goes along the depth
    b.output(b.node("MatMul", b.node("Concat", y, x, axis=1), b.input("float32", 10, 5, domain="plain")))
    once = b.input("float32", 3, 4, domain="plain")
    b.output(b.node("MatMul", b.node("Concat", once, once, axis=1), weight(b, 8, 5)))  # few rows, once a call
    compiled = tools.Compiled(b.finish())
    for candidates in (0, 1, 7, 50):
        feeds = b.feeds(candidates)
        expected = tools.expect(b.graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{name} at N={candidates}", *TOLERANCE)
    assert "Concat+MatMul" not in [step.label for step in make_plan(b.graph).steps]


def test_batched_and_computed_right_sides(tools: Any) -> None:
    b = tools.GraphBuilder()

    def plain(*shape: Any) -> str:
        return str(b.input("float32", *shape, domain="plain"))

    shared = plain(7, 19)
    b.output(b.node("MatMul", plain("N", 7), shared), b.node("MatMul", plain("N", 3, 7), shared))
    b.output(b.node("MatMul", plain("N", 7), b.node("Tanh", shared)))
    b.output(b.node("MatMul", plain(4, 7), shared), b.node("MatMul", plain(3, 4, 7), shared))
    for inner, columns in ((1, 1), (5, 17), (17, 3), (33, 2)):
        b.output(b.node("MatMul", plain("N", 5, inner), plain("N", inner, columns)))
    left, right = plain("N", 2, 3, 5), plain("N", 2, 5, 18)
    b.output(b.node("MatMul", left, right), b.node("MatMul", b.node("Relu", left), b.node("Neg", right)))
    b.output(b.node("MatMul", plain("N", 4, 6), weight(b, 1, 6, 5)), b.node("MatMul", plain("N", 4, 6), plain(1, 6, 5)))
    b.output(b.node("MatMul", plain("N", 2, 4, 6), weight(b, 1, 1, 6, 33)))
    b.output(b.node("MatMul", plain(4, 6), plain("N", 6, 5)), b.node("MatMul", plain(1, 4, 6), plain("N", 6, 5)))
    b.output(b.node("MatMul", weight(b, 4, 6), plain("N", 6, 5)))
    b.output(b.node("MatMul", plain(3, 4, 6), plain(3, 6, 5)), b.node("MatMul", plain(3, 4, 6), weight(b, 3, 6, 5)))
    b.output(b.node("MatMul", plain(("N", 2), 4, 6), plain(("N", 2), 6, 5)))
    b.output(b.node("MatMul", plain(("N", 2), 6), weight(b, 6, 5)), b.node("MatMul", plain("N", 2, 6), weight(b, 6, 1)))
    check(tools, b, (0, 1, 2, 7, 50, 131))


def test_fused_activations(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 9, domain="plain")
    batch = b.input("float32", "N", 3, 9, domain="plain")
    other = b.input("float32", "N", 9, 5, domain="plain")
    for activation in ("", *FUSED_ACTIVATIONS):
        for columns in (2, 5):
            extra = {"activation": activation, "alpha": 0.3 if columns > 2 else -0.2}
            b.output(b.node("MatMul", x, weight(b, 9, columns), weight(b, columns), **extra))
        b.output(b.node("MatMul", x, weight(b, 9, 1), activation=activation))
        b.output(b.node("MatMul", batch, other, weight(b, 5), activation=activation, alpha=0.1))
    check(tools, b, (1, 14, 15, 131))
    assert set(FUSED_ACTIVATIONS) <= set(OPERATORS)


def test_nothing_to_multiply(tools: Any) -> None:
    b = tools.GraphBuilder()
    for columns in (1, 5):
        b.output(b.node("MatMul", b.input("float32", "N", 0), weight(b, 0, columns)))
        b.output(b.node("MatMul", b.input("float32", "N", 0), weight(b, 0, columns), weight(b, columns)))
        b.output(b.node("MatMul", b.input("float32", "N", 2, 0), b.input("float32", "N", 0, columns)))
    b.output(b.node("MatMul", b.input("float32", "N", 4), weight(b, 4, 0)))
    b.output(b.node("MatMul", b.input("float32", "N", 2, 4), b.input("float32", "N", 4, 0)))
    b.output(b.node("MatMul", b.input("float32", "N", 0, 4), weight(b, 4, 3)))
    check(tools, b, (0, 1, 7))


def test_not_a_number_stays_in_its_row(tools: Any) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 20, domain="plain")
    wide, one = b.node("MatMul", x, weight(b, 20, 40)), b.node("MatMul", x, weight(b, 20, 1))
    compiled = tools.Compiled(b.output(wide, one).finish())
    feeds = b.feeds(40)
    clean = compiled(feeds)
    feeds[x][13, 4], feeds[x][27, 19] = np.nan, np.inf
    for name, array in compiled(feeds).items():
        touched = np.isin(np.arange(40), (13, 27))
        assert np.isnan(array[13]).all()
        assert not np.isfinite(array[27]).any()
        np.testing.assert_array_equal(array[~touched], clean[name][~touched])


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (("N", 4), (5, 3), "inner dimensions differ"),
        (("N", 4), ("N", 4), "inner dimensions differ"),
        (("N", 4), (("N", 4), 3), "inner dimensions differ"),
        ((2, "N"), (("N", 2), 3), "inner dimensions differ"),
        ((4,), (4, 3), "needs matrices"),
        (("N",), (4, 3), "needs matrices"),
        (("N", 4), (4,), "needs matrices"),
        ((3, 2, 4), (2, 4, 3), "do not broadcast"),
        (("N", 2, 4), (2, 4, 3), "do not broadcast"),
        ((("N", 2), 2, 4), ("N", 4, 3), "do not broadcast"),
    ],
)
def test_refused_forms(tools: Any, left: Any, right: Any, why: str) -> None:
    b = tools.GraphBuilder()
    with pytest.raises(UnsupportedOperatorError, match=rf"MatMul node 'matmul\d+': .*{why}"):
        b.node("MatMul", b.input("float32", *left), b.input("float32", *right))


def test_forms_that_mix_candidates(tools: Any) -> None:
    """Batches broadcast in part, and candidates against candidates: over the whole list, not in blocks."""
    b = tools.GraphBuilder()

    def plain(*shape: Any) -> str:
        return str(b.input("float32", *shape, domain="plain"))

    pairs: list[tuple[Any, Any]] = [
        (("N", 4), (2, 4, 3)),
        (("N", 4), ("N", 4, 3)),
        (("N", 2, 3, 4), ("N", 1, 4, 3)),
        (("N", 2, 3, 4), (2, 4, 3)),
        ((3, "N"), ("N", 3)),
        (("N", 3), (3, "N")),
    ]
    for left, right in pairs:
        b.output(b.node("MatMul", plain(*left), plain(*right)))
    graph = b.finish()
    compiled = tools.Compiled(graph)
    for candidates in (0, 1, 2, 9, 131, 300):
        feeds = b.feeds(candidates, seed=candidates)
        expected = tools.expect(graph, feeds)
        for name, array in compiled(feeds).items():
            tools.assert_close(array, expected[name], f"{graph.values[name]} at N={candidates}", *TOLERANCE)


def test_refused_dtypes_activation_and_bias(tools: Any) -> None:
    b = tools.GraphBuilder()
    x, w = b.input("float32", "N", 4), weight(b, 4, 3)
    refused: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        ((b.input("int64", "N", 4), w), {}, "needs two matrices of one dtype of float32, float64"),
        ((x, b.input("int32", 4, 3)), {}, "needs two matrices of one dtype"),
        ((b.input("int8", "N", 4), b.input("int8", 4, 3)), {}, "needs two matrices of one dtype"),
        ((b.input("bool", "N", 4), b.input("bool", 4, 3)), {}, "needs two matrices of one dtype"),
        ((x, w), {"activation": "Exp"}, "activation 'Exp' is not one of"),
        ((x, w), {"beta": 1.0}, "attribute 'beta' is not understood"),
        ((x, w, weight(b, 4)), {}, "must be float32"),
        ((x, w, b.input("int64", 3)), {}, "must be float32"),
        ((x, w, weight(b, 3), weight(b, 3)), {}, "has 4 inputs"),
        ((x,), {}, "has 1 inputs"),
        ((b.input("int64", "N", 4), b.input("int64", 4, 3)), {"activation": "Relu"}, "with float32 only"),
    ]
    for inputs, extra, why in refused:
        with pytest.raises(UnsupportedOperatorError, match=why):
            b.node("MatMul", *inputs, **extra)


@pytest.mark.parametrize("columns", [1, 3, 16, 17, 130])
@pytest.mark.parametrize("width", [4, 16, 64])
def test_packing(columns: int, width: int) -> None:
    matrix = np.arange(5 * columns, dtype=np.float32).reshape(5, columns)
    np.testing.assert_array_equal(pack(matrix, "plain", 0), matrix.reshape(-1))
    np.testing.assert_array_equal(pack(matrix, "columns", 0).reshape(columns, 5), matrix.T)
    panels = pack(matrix, "panels", width).reshape(-1, 5, width)
    joined = np.concatenate(list(panels), axis=1)
    np.testing.assert_array_equal(joined[:, :columns], matrix)
    assert not joined[:, columns:].any()
    row = pack(matrix[0], "padded", width)
    assert row.size % width == 0
    np.testing.assert_array_equal(row[:columns], matrix[0])
    assert not row[columns:].any()
