"""What an ensemble of trees says, in no framework's own terms: the description that every tree importer makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError

Array = NDArray[Any]

LESS_EQUAL, LESS, EQUAL, CATEGORY, VALUE = range(5)
"""Questions of a split: x <= t; x < t; x == t; is trunc(x) one of the members; is x equal to one of the members."""

ZERO_AS_OTHERS, ZERO_YES, ZERO_NO = range(3)
"""Where a value of nearly zero goes: where its comparison says, or always to one side (zero means missing)."""


@dataclass(frozen=True)
class Tree:
    """One tree of M splits and L leaves; the first split is the root, and a tree without splits is its first leaf.

    Attributes
    ----------
    feature
        (M,) integers, column of the features.
    question
        (M,) :data:`LESS_EQUAL` and its neighbours.
    threshold
        (M,) float64; not read where the question has members.
    missing_yes
        (M,) bool: whether NaN goes to the yes side.
    yes, no
        (M,) the split that follows, or ``~leaf``.
    leaf_start, leaf_target, leaf_weight
        (L + 1,), (E,), (E,): what each leaf adds to which outputs.
    zero
        (M,) :data:`ZERO_AS_OTHERS` and its neighbours; None when zero is like other values.
    members
        Categories or values by split.
    linear_start, linear_feature, linear_coefficient, linear_constant
        (L + 1,), (C,), (C,), (L,): linear models of the leaves, or None.
    """

    feature: Array
    question: Array
    threshold: Array
    missing_yes: Array
    yes: Array
    no: Array
    leaf_start: Array
    leaf_target: Array
    leaf_weight: Array
    zero: Array | None = None
    members: Mapping[int, Array] = field(default_factory=dict)
    linear_start: Array | None = None
    linear_feature: Array | None = None
    linear_coefficient: Array | None = None
    linear_constant: Array | None = None


@dataclass(frozen=True)
class Transform:
    """What becomes of the raw sums.

    Attributes
    ----------
    kind
        "identity"; "sigmoid", "exp", "softplus" or "signed_square" of each output; "softmax" over the outputs;
        "positive", 1 where an output is positive and 0 elsewhere; "largest", the number of the largest output.
    scale
        The raw sums are multiplied by it first.
    """

    kind: str = "identity"
    scale: float = 1.0


@dataclass(frozen=True)
class Ensemble:
    """Trees and how they are added up.

    Attributes
    ----------
    name
        Of the model.
    features
        Columns of the features.
    trees
        In the order in which they are added.
    base
        (K,) start of each output, in the dtype of the sums.
    aggregate, divisor
        "SUM", "AVERAGE" (the sum by ``divisor``), "MIN" or "MAX".
    zero_threshold
        Magnitudes up to this one count as zero.
    fraction_is_category_zero
        Whether a value between -1 and 0 is category 0, or no category.
    transform
        What becomes of the sums.
    missing_value
        A further value that means missing, besides NaN.
    metadata
        Free text for the graph.
    """

    name: str
    features: int
    trees: tuple[Tree, ...]
    base: Array
    aggregate: str = "SUM"
    divisor: float = 1.0
    zero_threshold: float = 0.0
    fraction_is_category_zero: bool = False
    transform: Transform = Transform()
    missing_value: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Linear:
    """A linear booster: a matrix where others have trees.

    Attributes
    ----------
    name
        Of the model.
    weight
        (F, K) float32.
    bias
        (K,) float32.
    transform, missing_value, metadata
        As in :class:`Ensemble`.
    """

    name: str
    weight: Array
    bias: Array
    transform: Transform = Transform()
    missing_value: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def one_leaf_each(weights: Array, output: int) -> tuple[Array, Array, Array]:
    """``leaf_start``, ``leaf_target`` and ``leaf_weight`` of leaves that add one number to one output.

    >>> one_leaf_each(np.array([0.5, -0.5]), 3)
    (array([0, 1, 2]), array([3, 3]), array([ 0.5, -0.5]))
    """
    return np.arange(len(weights) + 1), np.full(len(weights), output), weights


def check_tree(tree: Tree, number: int, features: int, outputs: int) -> None:
    """Check that the parts of a tree fit each other.

    Raises
    ------
    ConversionError
        Names the tree and what does not fit.
    """
    splits, leaves = len(tree.feature), len(tree.leaf_start) - 1

    def bad(what: str) -> ConversionError:
        return ConversionError(f"tree {number}: {what}; the model is damaged")

    for part in (tree.question, tree.threshold, tree.missing_yes, tree.yes, tree.no, tree.zero):
        if part is not None and part.shape != (splits,):
            raise bad(f"{splits} splits, but a list of {part.shape}")
    if leaves < 1:
        raise bad("no leaf")
    if splits and (tree.feature.min() < 0 or tree.feature.max() >= features):
        raise bad(f"a split asks for a feature outside 0 to {features - 1}")
    for following in (tree.yes, tree.no):
        if splits and (following.min() < -leaves or following.max() >= splits):
            raise bad(f"a split leads to no split below {splits} and to no leaf below {leaves}")
    asked = np.isin(tree.question, (LESS_EQUAL, LESS, EQUAL))
    if np.isnan(tree.threshold[asked]).any():
        raise bad("a threshold is NaN")
    sizes = np.diff(tree.leaf_start)
    if tree.leaf_start[0] != 0 or tree.leaf_start[-1] != len(tree.leaf_weight) or (sizes < 0).any():
        raise bad("the leaves do not cover their entries")
    if len(tree.leaf_target) and (tree.leaf_target.min() < 0 or tree.leaf_target.max() >= outputs):
        raise bad(f"a leaf adds to an output outside 0 to {outputs - 1}")
    if len(tree.leaf_weight) and np.isnan(tree.leaf_weight).any():
        raise bad("a leaf's value is NaN")
    linear = np.zeros(0) if tree.linear_feature is None else tree.linear_feature
    if len(linear) and (linear.min() < 0 or linear.max() >= features):
        raise bad(f"a linear leaf asks for a feature outside 0 to {features - 1}")
