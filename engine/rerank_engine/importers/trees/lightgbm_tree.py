"""LightGBM's decisions in neutral terms, shared by its text and JSON forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.model import (
    CATEGORY,
    LESS,
    LESS_EQUAL,
    ZERO_AS_OTHERS,
    ZERO_NO,
    ZERO_YES,
    Array,
    Tree,
    one_leaf_each,
)

ZERO_THRESHOLD = float(np.float32(1e-35))
"""Magnitudes up to this one are zero to LightGBM."""

MISSING_NONE, MISSING_ZERO, MISSING_NAN = range(3)
"""What a split takes for missing."""


@dataclass(frozen=True)
class Booster:
    """A LightGBM model.

    Attributes
    ----------
    features
        Columns of the features.
    trees_per_iteration
        Outputs; tree t adds to output ``t % trees_per_iteration``.
    objective
        As the file writes it: a name and options; empty for none.
    average_output
        Whether the sums are divided by the number of iterations.
    trees
        All trees.
    feature_names
        As the file has them.
    pandas_categorical
        Categories of the data frame that the model was trained on, by categorical column.
    """

    features: int
    trees_per_iteration: int
    objective: str
    average_output: bool
    trees: tuple[Tree, ...]
    feature_names: tuple[str, ...] = ()
    pandas_categorical: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Splits:
    """Splits of one tree as LightGBM has them.

    Attributes
    ----------
    feature, threshold, left, right
        (M,) each; children below zero are leaves.
    categorical, default_left
        (M,) bool.
    missing
        (M,) :data:`MISSING_NONE` and its neighbours.
    categories
        Categories by split.
    """

    feature: Array
    threshold: Array
    categorical: Array
    default_left: Array
    missing: Array
    left: Array
    right: Array
    categories: Mapping[int, Array]


@dataclass(frozen=True)
class LinearLeaves:
    """Linear models of the leaves of one tree: (L + 1,), (C,), (C,), (L,)."""

    start: Array
    feature: Array
    coefficient: Array
    constant: Array


def make_tree(splits: Splits, leaf_values: Array, output: int, linear: LinearLeaves | None) -> Tree:
    """Put a tree into neutral terms.

    LightGBM turns magnitudes of up to 1e-35 into zero before it compares; a threshold between them is moved to the
    end where all of them answer alike. Where zero means missing they all follow the default.
    """
    threshold = splits.threshold
    tiny_up = (threshold >= 0) & (threshold < ZERO_THRESHOLD)
    tiny_down = (threshold < 0) & (threshold >= -ZERO_THRESHOLD)
    moved = np.where(tiny_up, ZERO_THRESHOLD, np.where(tiny_down, -ZERO_THRESHOLD, threshold))
    numerical = ~splits.categorical
    question = np.where(splits.categorical, CATEGORY, np.where(tiny_down, LESS, LESS_EQUAL))
    # Without a meaning of its own NaN is zero; where zero is missing it is missing with it.
    missing_yes = np.where(splits.missing == MISSING_NONE, threshold >= 0, splits.default_left) & numerical
    zero = np.where(splits.default_left, ZERO_YES, ZERO_NO)
    zero = np.where((splits.missing == MISSING_ZERO) & numerical, zero, ZERO_AS_OTHERS)
    start, target, weight = one_leaf_each(leaf_values, output)
    return Tree(
        feature=splits.feature,
        question=question,
        threshold=moved,
        missing_yes=missing_yes,
        yes=splits.left,
        no=splits.right,
        leaf_start=start,
        leaf_target=target,
        leaf_weight=weight,
        zero=zero,
        members=splits.categories,
        linear_start=None if linear is None else linear.start,
        linear_feature=None if linear is None else linear.feature,
        linear_coefficient=None if linear is None else linear.coefficient,
        linear_constant=None if linear is None else linear.constant,
    )


def bit_members(words: Array) -> Array:
    """Numbers of the bits that are set in 32-bit words.

    >>> bit_members(np.array([5, 1]))
    array([ 0,  2, 32])
    """
    if words.size and (words.min() < 0 or words.max() >= 2**32):
        raise ConversionError("a word of a category set does not fit into 32 bits; the model is damaged")
    bits = np.unpackbits(np.ascontiguousarray(words, dtype="<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits)
