"""A described ensemble becomes the constant inputs of a TreeEnsemble node.

Every question about numbers is turned into intervals of order keys, exactly: for float32 features a float64 threshold
becomes the largest float32 that answers like it. A question that needs several intervals becomes a chain of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.model import (
    CATEGORY,
    LESS,
    LESS_EQUAL,
    ZERO_AS_OTHERS,
    ZERO_YES,
    Array,
    Ensemble,
    Tree,
    check_tree,
)
from rerank_engine.ops.trees import (
    INTERVAL,
    KEY_RANGES,
    MEMBER,
    MEMBER_FROM_MINUS_ONE,
    MEMBER_IF_MISSING,
    EnsembleArrays,
    order_keys,
)

_CATEGORY_LIMIT = 2**31
_SPARSE_WORDS = 8
"""A set may have this many words, and two a member; a sparser one becomes a chain of intervals."""

Interval = tuple[int, int]


class _Forest(NamedTuple):
    """All splits of all trees, children numbered over all of them."""

    members: dict[int, Array]
    tree: Array
    feature: Array
    question: Array
    threshold: Array
    missing_yes: Array
    zero: Array
    yes: Array
    no: Array


class _Questions(NamedTuple):
    """What the splits ask.

    Attributes
    ----------
    kind
        (M,) kind of the nodes.
    first, last
        (M,) interval of each split that has just one.
    chains
        The splits that have several intervals or none, or (first word, number of words) of a set.
    bitsets
        Words of all sets.
    """

    kind: Array
    first: Array
    last: Array
    chains: dict[int, list[Interval]]
    bitsets: Array


def ensemble_arrays(ensemble: Ensemble, features_dtype: str = "float32") -> EnsembleArrays:
    """Turn a description into arrays.

    Parameters
    ----------
    ensemble
        The description.
    features_dtype
        "float32" or "float64": what the node will read.

    Raises
    ------
    ConversionError
        A tree is damaged: children outside it, a circle, a threshold that is no number.

    Examples
    --------
    >>> from rerank_engine.importers.trees.model import Ensemble, Tree, one_leaf_each
    >>> stump = Tree(*(np.array([0]), np.array([LESS_EQUAL]), np.array([0.5]), np.array([False])),
    ...              *(np.array([-1]), np.array([-2])), *one_leaf_each(np.array([1.0, 2.0]), 0))
    >>> ensemble_arrays(Ensemble("stump", 1, (stump,), np.zeros(1))).nodes.tolist()
    [[0, 0, -1, -2]]
    """
    outputs = len(ensemble.base)
    for number, tree in enumerate(ensemble.trees):
        check_tree(tree, number, ensemble.features, outputs)
    trees = ensemble.trees or (_nothing(),)
    forest = _in_order(_join(trees))
    questions = _questions(forest, ensemble, features_dtype)
    nodes, ranges, tree_start = _chain(forest, questions, len(trees), features_dtype)
    sums = ensemble.base.dtype
    leaf_starts, linear = [tree.leaf_start for tree in trees], any(tree.linear_start is not None for tree in trees)
    return EnsembleArrays(
        tree_start=tree_start,
        nodes=nodes,
        ranges=ranges,
        bitsets=questions.bitsets,
        leaf_start=_join_starts(leaf_starts),
        leaf_target=_int32(np.concatenate([tree.leaf_target for tree in trees]), "output"),
        leaf_weight=np.concatenate([tree.leaf_weight for tree in trees]).astype(sums),
        base=np.ascontiguousarray(ensemble.base),
        **(_linear_parts(trees, sums) if linear else {}),
    )


def _nothing() -> Tree:
    """A tree that adds nothing."""
    none = np.zeros(0, np.int64)
    return Tree(none, none, none.astype(float), none.astype(bool), none, none, np.zeros(2, np.int64), none, none)


def _linear_parts(trees: Sequence[Tree], sums: np.dtype[Any]) -> dict[str, Array]:
    starts, features, coefficients, constants = [], [], [], []
    for tree in trees:
        leaves = len(tree.leaf_start) - 1
        if len(tree.leaf_weight) != leaves:
            raise ConversionError("trees with linear leaves must have one value a leaf")
        starts.append(np.zeros(leaves + 1, np.int64) if tree.linear_start is None else tree.linear_start)
        features.append(np.zeros(0, np.int64) if tree.linear_feature is None else tree.linear_feature)
        coefficients.append(np.zeros(0) if tree.linear_coefficient is None else tree.linear_coefficient)
        constants.append(tree.leaf_weight if tree.linear_constant is None else tree.linear_constant)
    return {
        "linear_start": _join_starts(starts),
        "linear_feature": _int32(np.concatenate(features), "feature"),
        "linear_coefficient": np.concatenate(coefficients).astype(sums),
        "linear_constant": np.concatenate(constants).astype(sums),
    }


def _join_starts(starts: Sequence[Array]) -> Array:
    sizes = np.concatenate([np.diff(start) for start in starts])
    return _int32(np.concatenate([[0], np.cumsum(sizes)]), "number of entries")


def _int32(numbers: Array, what: str) -> Array:
    if numbers.size and (numbers.min() < -(2**31) or numbers.max() >= 2**31):
        raise ConversionError(f"a {what} does not fit into 32 bits; the ensemble is too large")
    return np.ascontiguousarray(numbers, dtype=np.int32)


def _join(trees: Sequence[Tree]) -> _Forest:
    """Number splits and leaves over all trees; a tree without splits gets one that always leads to its leaf."""
    parts: list[tuple[Array, ...]] = []
    members: dict[int, Array] = {}
    split, leaf = 0, 0
    for number, tree in enumerate(trees):
        count = len(tree.feature)
        zero = np.zeros(count, np.int64) if tree.zero is None else tree.zero
        own: Sequence[Array] = (tree.feature, tree.question, tree.threshold, tree.missing_yes, zero, tree.yes, tree.no)
        if count == 0:
            own = [np.array([entry]) for entry in (0, LESS_EQUAL, 0.0, False, 0, -1, -1)]
        *asked, yes, no = own
        yes, no = (np.where(following >= 0, following + split, following - leaf) for following in (yes, no))
        parts.append((np.full(len(yes), number), *asked, yes, no))
        members.update({split + at: values for at, values in tree.members.items()})
        split, leaf = split + len(yes), leaf + len(tree.leaf_start) - 1
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Forest(members, *joined)


def _in_order(forest: _Forest) -> _Forest:
    """Put parents before children, trees one after another; what no root reaches is left out."""
    count = len(forest.feature)
    first = np.flatnonzero(np.diff(forest.tree, prepend=-1))
    level, levels, seen = first, [first], len(first)
    while level.size:
        following = np.concatenate([forest.yes[level], forest.no[level]])
        level = following[following >= 0]
        seen += len(level)
        if seen > count:
            raise ConversionError("the splits of a tree form a circle, or share one; the model is damaged")
        levels.append(level)
    order = np.concatenate(levels)
    if len(np.unique(order)) != len(order):
        raise ConversionError("two splits lead to the same one; the model is damaged")
    order = order[np.argsort(forest.tree[order], kind="stable")]
    place = np.zeros(count, np.int64)
    place[order] = np.arange(len(order))
    yes, no = (
        np.where(following >= 0, place[np.maximum(following, 0)], following)
        for following in (forest.yes[order], forest.no[order])
    )
    reached = np.zeros(count, bool)
    reached[order] = True
    members = {int(place[at]): values for at, values in forest.members.items() if reached[at]}
    return _Forest(
        members=members,
        tree=forest.tree[order],
        feature=forest.feature[order],
        question=forest.question[order],
        threshold=forest.threshold[order],
        missing_yes=forest.missing_yes[order],
        zero=forest.zero[order],
        yes=yes,
        no=no,
    )


# --- questions ---------------------------------------------------------------------------------------------------


class _Grid:
    """The floats of one dtype as a grid of order keys."""

    def __init__(self, dtype: str) -> None:
        self.marks = KEY_RANGES[dtype]
        self.dtype = np.dtype(dtype)

    def last_at_most(self, thresholds: Array) -> Array:
        """Key of the largest float that is not above each threshold."""
        return self._last(thresholds, strict=False)

    def last_below(self, thresholds: Array) -> Array:
        """Key of the largest float below each threshold; under the key of -infinity where there is none."""
        return self._last(thresholds, strict=True)

    def first_at_least(self, thresholds: Array) -> Array:
        """Key of the smallest float that is not below each threshold."""
        return -1 - self._last(-thresholds, strict=False)

    def _last(self, thresholds: Array, strict: bool) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            nearest = thresholds.astype(self.dtype)
        # Both zeros are one number: the last key of "at most 0" is that of 0.0, of "below 0" the one before -0.0.
        keys = order_keys(nearest).astype(np.int64)
        keys = np.where(nearest == 0, 0, keys)
        above = nearest.astype(np.float64) > thresholds
        back = above | (strict & (nearest.astype(np.float64) == thresholds))
        return np.where(back, np.where(nearest == 0, -2, keys - 1), keys)


def _questions(forest: _Forest, ensemble: Ensemble, dtype: str) -> _Questions:
    grid = _Grid(dtype)
    marks = grid.marks
    missing = [(marks.first_nan, marks.last_nan)]
    kind = np.full(len(forest.feature), INTERVAL)
    first = np.where(forest.missing_yes, marks.first_nan, marks.negative_infinity)
    last = _upper(forest, grid)
    around_zero = (
        int(grid.first_at_least(np.array([-ensemble.zero_threshold]))[0]),
        int(grid.last_at_most(np.array([ensemble.zero_threshold]))[0]),
    )
    compares = np.isin(forest.question, (LESS_EQUAL, LESS))
    is_plain = compares & (forest.zero == ZERO_AS_OTHERS) & (last >= marks.negative_infinity)
    chains: dict[int, list[Interval]] = {}
    words: list[Array] = []
    total = 0
    for at in np.flatnonzero(~is_plain).tolist():
        with_missing = bool(forest.missing_yes[at])
        if compares[at]:
            below = [(int(first[at]), int(last[at]))] if last[at] >= marks.negative_infinity else missing[:with_missing]
            chains[at] = _with_zero(below, int(forest.zero[at]), around_zero)
            continue
        members = forest.members.get(at, forest.threshold[at : at + 1])
        if forest.question[at] == CATEGORY:
            members = _categories(members)
            word_count = int(members[-1]) // 32 + 1 if members.size else 0
            if word_count <= 2 * members.size + _SPARSE_WORDS:
                fraction = MEMBER_FROM_MINUS_ONE if ensemble.fraction_is_category_zero else 0
                kind[at] = MEMBER | fraction | (MEMBER_IF_MISSING if with_missing else 0)
                chains[at] = [(total, word_count)]
                words.append(_bits(members, word_count))
                total += word_count
                continue
            found = _category_intervals(grid, members, ensemble.fraction_is_category_zero)
        else:
            found = _value_intervals(grid, members)
        chains[at] = [*found, *missing[:with_missing]]
    bitsets = np.concatenate([*words, np.zeros(0 if total else 1, np.uint32)])
    return _Questions(kind, first, last, chains, np.ascontiguousarray(bitsets).view(np.int32))


def _categories(members: Array) -> Array:
    members = np.unique(members)
    if members.size and (members[0] < 0 or members[-1] >= _CATEGORY_LIMIT):
        raise ConversionError(f"a category is outside 0 to {_CATEGORY_LIMIT - 1}; the model is damaged")
    return members.astype(np.int64)


def _upper(forest: _Forest, grid: _Grid) -> Array:
    strict = forest.question == LESS
    asked = np.isin(forest.question, (LESS_EQUAL, LESS))
    thresholds = np.where(asked, forest.threshold, 0.0)
    return np.where(strict, grid.last_below(thresholds), grid.last_at_most(thresholds))


def _with_zero(below: list[Interval], zero: int, around: Interval) -> list[Interval]:
    """Take the values of nearly zero into what is below a threshold, or out of it."""
    low, high = around
    if zero == ZERO_AS_OTHERS or not below:
        return [*below, around] if zero == ZERO_YES else below
    ((first, last),) = below
    if zero == ZERO_YES:
        return [(first, max(last, high))] if last >= low - 1 else [*below, around]
    if last < low:
        return below
    return [(first, low - 1)] if last <= high else [(first, low - 1), (high + 1, last)]


def _value_intervals(grid: _Grid, members: Array) -> list[Interval]:
    """One interval for each value that the dtype has; the two zeros share one."""
    values = np.unique(np.asarray(members, np.float64))
    first, last = grid.first_at_least(values), grid.last_at_most(values)
    return _merged(zip(first.tolist(), last.tolist(), strict=True))


def _category_intervals(grid: _Grid, members: Array, fraction_is_zero: bool) -> list[Interval]:
    """One interval for each run of neighbouring categories."""
    values = members.astype(np.float64)
    first, last = grid.first_at_least(values), grid.last_below(values + 1)
    if values.size and values[0] == 0 and fraction_is_zero:
        first[0] = 1 + grid.last_at_most(np.array([-1.0]))[0]
    return _merged(zip(first.tolist(), last.tolist(), strict=True))


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for first, last in intervals:
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _bits(members: Array, word_count: int) -> Array:
    words = np.zeros(word_count, np.uint32)
    np.bitwise_or.at(words, members >> 5, np.left_shift(np.uint32(1), (members & 31).astype(np.uint32)))
    return words


# --- nodes -------------------------------------------------------------------------------------------------------


def _chain(forest: _Forest, questions: _Questions, trees: int, dtype: str) -> tuple[Array, Array, Array]:
    """One node for each interval: yes leads on, no leads to the next interval of the same split."""
    count = len(forest.feature)
    sizes = np.ones(count, np.int64)
    never = np.zeros(count, bool)
    for at, chain in questions.chains.items():
        sizes[at], never[at] = max(1, len(chain)), not chain
    start = np.concatenate([[0], np.cumsum(sizes)])
    split = np.repeat(np.arange(count), sizes)
    place = np.arange(len(split))
    yes, no = (
        np.where(following >= 0, start[np.maximum(following, 0)], following)[split]
        for following in (forest.yes, forest.no)
    )
    no = np.where(place == start[split + 1] - 1, no, place + 1)
    # A split that nothing answers with yes has no interval: both ways lead to no.
    yes = np.where(never[split], no, yes)
    low, high = questions.first[split], questions.last[split]
    for at, chain in questions.chains.items():
        for number, (first, second) in enumerate(chain):
            low[start[at] + number], high[start[at] + number] = first, second
    span = np.where((questions.kind == INTERVAL)[split], high - low, high)
    # On the circle of keys: the low bits of a 64-bit difference are those of a 32-bit one.
    ranges = np.stack([low, span], axis=1).astype(KEY_RANGES[dtype].dtype)
    nodes = np.stack([forest.feature[split], questions.kind[split], yes, no], axis=1)
    per_tree = np.bincount(forest.tree, sizes, minlength=trees).astype(np.int64)
    tree_start = np.concatenate([[0], np.cumsum(per_tree)])
    return _int32(nodes, "number of nodes"), np.ascontiguousarray(ranges), _int32(tree_start, "number of nodes")
