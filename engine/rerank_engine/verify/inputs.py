"""Inputs like those of a recommender: lists of several lengths, ids at the ends of their tables, masks, odd numbers.

Each case changes one thing of the plain mix: all ids are the first, or the last; nothing is masked, or everything;
numbers are large, negative, zero, zeros and ones, or not a number in one row. In the last cases a single id is one
that its table has not. The same seed gives the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank_engine.errors import InputError
from rerank_engine.graph import CANDIDATES, DTYPES, Graph
from rerank_engine.ops.registry import Array
from rerank_engine.verify.sizes import case_sizes, shape_at, sizes_text
from rerank_engine.verify.uses import Bounds, InputUse, find_uses, id_bounds

LENGTHS = (0, 1, 7, 50)
"""Numbers of candidates that are tried when nothing else is said."""

LARGE = 1e4
"""Standard deviation of large numbers: their squares are far from the range of float32, their exponentials beyond."""

_MIX = {"ids": "mix", "mask": "some", "number": "normal"}
_ONE_CHANGE = {
    "ids": ("first", "last", "minus one"),
    "mask": ("none", "all"),
    "number": ("large", "negative", "zero", "binary", "nan"),
}
_OUTSIDE = ("last+1", "below")

PLAIN = "mix"
"""Kind of the case that changes nothing; the first of each list length."""

MUST_RUN = (PLAIN, "ids first", "ids last")
"""Kinds of cases whose inputs are right for any model; that they are refused proves nothing."""

MINUS_ONE = "ids minus one"
"""Kind of the case in which all ids are -1: the last row for ONNX, no id at all for others."""


@dataclass(frozen=True)
class InputCase:
    """One call of the model.

    Attributes
    ----------
    name
        What is special about it, for example ``N=7: ids last``.
    kind
        The part of the name after the sizes.
    sizes
        Sizes of the named dimensions.
    inputs
        An array for each input.
    outside
        ``(input, id)`` where an id is put that its table has not; None otherwise.
    has_nan
        Whether some input is not a number.
    """

    name: str
    kind: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array] = field(repr=False)
    outside: tuple[str, int] | None = None
    has_nan: bool = False


def generate_cases(
    graph: Graph,
    *,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
    vocabularies: Mapping[str, int] | None = None,
) -> Iterator[InputCase]:
    """Make the inputs of a verification.

    Parameters
    ----------
    graph
        The model, not optimised, so that every way from an input to a table is still there.
    lengths
        Numbers of candidates.
    seed
        Of all numbers.
    vocabularies
        Number of ids by input, for inputs whose tables cannot be found by following them.

    Yields
    ------
    InputCase
        In a fixed order; an empty list has one case.

    Raises
    ------
    InputError
        A length is negative or above the model's maximum, or a vocabulary is for no input of the model.

    Examples
    --------
    >>> from rerank_engine.graph import Dim, Value
    >>> graph = Graph("g", inputs=["x"], values={"x": Value("x", "float32", (Dim("N"), 2))})
    >>> [case.name for case in generate_cases(graph, lengths=[0, 3])][:3]
    ['N=0: mix', 'N=3: mix', 'N=3: number large']
    """
    if any(length < 0 for length in lengths) or not lengths:
        raise InputError(f"lengths {list(lengths)}: give at least one, none of them negative")
    known = dict(vocabularies or {})
    if wrong := [name for name, count in known.items() if name not in graph.inputs or count < 1]:
        raise InputError(f"vocabulary of {wrong[0]!r}: expected an input ({', '.join(graph.inputs)}) and at least 1 id")
    uses = [InputUse(use.value, "ids", use.lookups) if use.value.name in known else use for use in find_uses(graph)]
    for sizes in case_sizes(graph, lengths):
        yield from _Maker(graph, uses, sizes, seed, known).cases()


class _Maker:
    """Makes the cases of one length."""

    def __init__(
        self,
        graph: Graph,
        uses: Sequence[InputUse],
        sizes: Mapping[str, int],
        seed: int,
        vocabularies: Mapping[str, int],
    ) -> None:
        self._uses = uses
        self._sizes = sizes
        self._seed = seed
        self._bounds = {
            use.value.name: id_bounds(graph, use, sizes, vocabularies.get(use.value.name))
            for use in uses
            if use.use == "ids"
        }

    def cases(self) -> Iterator[InputCase]:
        yield self._case(PLAIN, _MIX)
        if self._sizes.get(CANDIDATES) == 0:
            return
        present = {use.use for use in self._uses}
        for use, changes in _ONE_CHANGE.items():
            for change in changes if use in present else ():
                if change == "nan" and not any(self._takes_nan(entry) for entry in self._uses):
                    continue
                yield self._case(f"{use} {change}", {**_MIX, use: change})
        for entry in self._uses:
            bounds = self._bounds.get(entry.value.name)
            if bounds is not None and bounds.high.size:
                for where in _OUTSIDE:
                    case = self._outside(entry, bounds, where)
                    if case is not None:
                        yield case

    def _case(self, kind: str, kinds: Mapping[str, str]) -> InputCase:
        inputs = {use.value.name: self._array(use, kinds[use.use], kind) for use in self._uses}
        has_nan = any(array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in inputs.values())
        return InputCase(f"{sizes_text(self._sizes)}: {kind}", kind, self._sizes, inputs, has_nan=has_nan)

    def _random(self, use: InputUse, kind: str) -> np.random.Generator:
        place = zlib.crc32(f"{use.value.name}/{kind}/{sizes_text(self._sizes)}".encode())
        return np.random.default_rng([self._seed, place])

    def _array(self, use: InputUse, change: str, kind: str) -> Array:
        random, dtype, shape = self._random(use, kind), DTYPES[use.value.dtype], shape_at(use.value, self._sizes)
        if use.use == "ids":
            if change == "minus one" and dtype.kind == "u":
                change = "first"
            return _ids(random, self._bounds[use.value.name], change).astype(dtype)
        if use.use == "mask":
            if change == "some":
                return random.integers(0, use.largest, shape, endpoint=True).astype(dtype)
            return np.full(shape, 0 if change == "none" else use.largest, dtype)
        if dtype.kind == "f":
            return _floats(random, shape, change).astype(dtype)
        return _integers(random, shape, change, dtype)

    def _takes_nan(self, use: InputUse) -> bool:
        return use.use == "number" and DTYPES[use.value.dtype].kind == "f" and 0 not in shape_at(use.value, self._sizes)

    def _outside(self, use: InputUse, bounds: Bounds, where: str) -> InputCase | None:
        """The plain mix with one id that its table has not; None where the dtype has no such number."""
        kind = f"{use.value.name} {where}"
        case = self._case(kind, _MIX)
        array = case.inputs[use.value.name].copy()
        place = int(self._random(use, kind).integers(array.size))
        last, rows = int(bounds.high.reshape(-1)[place]), int(bounds.rows.reshape(-1)[place])
        # The specification of ONNX counts negative ids from the end of the table: below is beyond its start, too.
        wanted = last if where == "last+1" else last - 2 * rows - 1
        if array.dtype.kind in "iu" and not np.iinfo(array.dtype).min <= wanted <= np.iinfo(array.dtype).max:
            return None
        array.reshape(-1)[place] = wanted
        inputs = {**case.inputs, use.value.name: array}
        return InputCase(case.name, kind, case.sizes, inputs, outside=(use.value.name, wanted))


def _ids(random: np.random.Generator, bounds: Bounds, change: str) -> Array:
    first, last = np.minimum(np.maximum(bounds.low, 0), bounds.high - 1), bounds.high - 1
    if change == "first":
        return first
    if change == "last":
        return last
    if change == "minus one":
        return bounds.low - 1
    mixed = random.integers(first, last, endpoint=True)
    ends = random.random(mixed.shape)
    return np.where(ends < 0.1, first, np.where(ends > 0.9, last, mixed))


def _floats(random: np.random.Generator, shape: tuple[int, ...], change: str) -> Array:
    normal = random.standard_normal(shape)
    if change == "large":
        return normal * LARGE
    if change == "negative":
        return -np.abs(normal)
    if change == "zero":
        return np.zeros(shape)
    if change == "binary":
        return np.asarray(normal > 0, np.float64)
    if change == "nan" and normal.size:
        if normal.ndim:
            normal[len(normal) // 2] = np.nan
        else:
            normal = np.asarray(np.nan)
    return normal


def _integers(random: np.random.Generator, shape: tuple[int, ...], change: str, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    if change == "large":
        return random.integers(max(limits.min, -(10**6)), min(limits.max, 10**6), shape, dtype=dtype, endpoint=True)
    if change == "negative" and limits.min < 0:
        return random.integers(-9, 0, shape, dtype=dtype)
    if change == "zero":
        return np.zeros(shape, dtype)
    return random.integers(0, 1 if change == "binary" else 9, shape, dtype=dtype, endpoint=True)
