"""LightGBM's JSON dump: ``Booster.dump_model`` as a dictionary or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.lightgbm_tree import (
    MISSING_NAN,
    MISSING_NONE,
    MISSING_ZERO,
    Booster,
    LinearLeaves,
    Splits,
    make_tree,
)
from rerank_engine.importers.trees.model import Array, Tree
from rerank_engine.importers.trees.sources import Fields

_MISSING = {"None": MISSING_NONE, "Zero": MISSING_ZERO, "NaN": MISSING_NAN}
_MOST_OUTPUTS = 1 << 20


def parse_dump(document: Mapping[str, Any]) -> Booster:
    """Read a dump.

    Raises
    ------
    ConversionError
        It is no dump of a LightGBM model, or damaged.
    """
    root = Fields(document, "dump")
    if "tree_info" not in root:
        raise ConversionError("this JSON is no dump of a LightGBM model: it has no 'tree_info'")
    outputs = root.integer("num_tree_per_iteration", low=1, high=_MOST_OUTPUTS)
    trees = [
        _Walk(f"dump.tree_info[{number}]").tree(entry, number % outputs)
        for number, entry in enumerate(root.list("tree_info"))
    ]
    names = root.list("feature_names") if "feature_names" in root else []
    categories = document.get("pandas_categorical")
    return Booster(
        features=root.integer("max_feature_idx", high=2**31 - 2) + 1,
        trees_per_iteration=outputs,
        objective=root.text("objective", ""),
        average_output=document.get("average_output", False) is True,
        trees=tuple(trees),
        feature_names=tuple(str(name) for name in names),
        pandas_categorical=tuple(categories) if isinstance(categories, list) else (),
    )


class _Walk:
    """Collects the splits and leaves of one nested tree."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.splits: list[tuple[int, float, bool, bool, int]] = []
        self.children: list[list[int]] = []
        self.categories: dict[int, Array] = {}
        self.values: list[float] = []
        self.linear: list[tuple[float, Array, Array] | None] = []

    def tree(self, entry: Any, output: int) -> Tree:
        root = Fields(entry, self.place).object("tree_structure")
        waiting: list[tuple[Fields, int, int]] = [(root, -1, 0)]
        seen: set[int] = set()
        while waiting:
            node, parent, side = waiting.pop()
            if id(node.value) in seen:
                raise ConversionError(f"{self.place}: a part of the tree occurs twice; the model is damaged")
            seen.add(id(node.value))
            if "split_feature" in node:
                place = self._split(node)
                waiting += [(node.object("right_child"), place, 1), (node.object("left_child"), place, 0)]
            else:
                place = ~self._leaf(node)
            if parent >= 0:
                self.children[parent][side] = place
        return make_tree(self._splits(), np.array(self.values), output, self._linear())

    def _split(self, node: Fields) -> int:
        place = len(self.splits)
        decision = node.text("decision_type")
        if decision not in ("<=", "=="):
            raise ConversionError(f"{node.place}.decision_type {decision!r} is not known; known: <= and ==")
        missing = node.text("missing_type")
        if missing not in _MISSING:
            raise node.bad("missing_type", " or ".join(_MISSING))
        categorical = decision == "=="
        threshold = 0.0 if categorical else node.number("threshold")
        if categorical:
            self.categories[place] = _categories(node)
        default_left = node.value.get("default_left") is True
        self.splits.append((node.integer("split_feature"), threshold, categorical, default_left, _MISSING[missing]))
        self.children.append([0, 0])
        return place

    def _leaf(self, node: Fields) -> int:
        self.values.append(node.number("leaf_value"))
        if "leaf_const" not in node:
            self.linear.append(None)
        else:
            features = node.integers("leaf_features")
            self.linear.append((node.number("leaf_const"), features, node.numbers("leaf_coeff", len(features))))
        return len(self.values) - 1

    def _splits(self) -> Splits:
        children = np.array(self.children, np.int64).reshape(-1, 2)
        feature, threshold, categorical, default_left, missing = (
            zip(*self.splits, strict=True) if self.splits else [()] * 5
        )
        return Splits(
            feature=np.array(feature, np.int64),
            threshold=np.array(threshold, np.float64),
            categorical=np.array(categorical, bool),
            default_left=np.array(default_left, bool),
            missing=np.array(missing, np.int64),
            left=children[:, 0],
            right=children[:, 1],
            categories=self.categories,
        )

    def _linear(self) -> LinearLeaves | None:
        if not any(self.linear):
            return None
        parts = [
            (value, np.zeros(0, np.int64), np.zeros(0)) if leaf is None else leaf
            for value, leaf in zip(self.values, self.linear, strict=True)
        ]
        return LinearLeaves(
            start=np.concatenate([[0], np.cumsum([len(features) for _, features, _ in parts])]),
            feature=np.concatenate([features for _, features, _ in parts]),
            coefficient=np.concatenate([coefficients for _, _, coefficients in parts]),
            constant=np.array([constant for constant, _, _ in parts]),
        )


def _categories(node: Fields) -> Array:
    words = node.value.get("threshold")
    words = [str(words)] if isinstance(words, int | float) else str(words).split("||")
    try:
        return np.array([int(word) for word in words], dtype=np.int64)
    except (ValueError, OverflowError):
        raise node.bad("threshold", "categories, such as 1||4||7") from None
