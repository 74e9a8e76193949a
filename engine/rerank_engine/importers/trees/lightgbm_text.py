"""LightGBM's text model: lines of ``key=value``, one block for the model and one for each tree."""

from __future__ import annotations

import json
import re

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.lightgbm_tree import Booster, LinearLeaves, Splits, bit_members, make_tree
from rerank_engine.importers.trees.model import Array, Tree

_VERSIONS = ("v2", "v3", "v4")
_TREE = re.compile(r"^Tree=\d+\s*$", re.MULTILINE)
_MOST_OUTPUTS = 1 << 20


def parse_text(text: str) -> Booster:
    """Read a text model.

    Raises
    ------
    ConversionError
        It is no text model, of another version, or damaged.
    """
    if text.lstrip().partition("\n")[0].strip() != "tree":
        raise ConversionError("a LightGBM text model starts with the line 'tree'; this source does not")
    body, end, rest = text.partition("\nend of trees")
    if not end:
        raise ConversionError("the LightGBM model has no line 'end of trees'; it is cut off")
    head, *blocks = _TREE.split(body)
    header = _Block(head, "the header")
    version = header.text("version")
    if version not in _VERSIONS:
        raise ConversionError(f"LightGBM model version {version!r} is not supported; supported: {', '.join(_VERSIONS)}")
    features = header.integer("max_feature_idx", 0, 2**31 - 2) + 1
    outputs = header.integer("num_tree_per_iteration", 1, _MOST_OUTPUTS)
    trees = [_tree(_Block(block, f"tree {number}"), number % outputs) for number, block in enumerate(blocks)]
    if "tree_sizes" in header.lines and len(header.text("tree_sizes").split()) != len(trees):
        raise ConversionError("the LightGBM model has not as many trees as its header says; it is damaged")
    return Booster(
        features=features,
        trees_per_iteration=outputs,
        objective=header.lines.get("objective", ""),
        average_output="average_output" in header.flags,
        trees=tuple(trees),
        feature_names=tuple(header.lines.get("feature_names", "").split()),
        pandas_categorical=_pandas_categorical(rest),
    )


class _Block:
    """Lines of one block."""

    def __init__(self, text: str, place: str) -> None:
        self.place = place
        self.lines: dict[str, str] = {}
        self.flags: set[str] = set()
        for line in text.splitlines():
            key, equals, value = line.strip().partition("=")
            if equals:
                if key in self.lines:
                    raise ConversionError(f"{place} has {key!r} twice; the model is damaged")
                self.lines[key] = value
            elif key:
                self.flags.add(key)

    def text(self, key: str) -> str:
        if key not in self.lines:
            raise ConversionError(f"{self.place} has no {key!r}; the model is damaged")
        return self.lines[key].strip()

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        if default is not None and key not in self.lines:
            return default
        (number,) = self.integers(key, 1)
        if not low <= number <= high:
            raise ConversionError(f"{self.place}: {key}={number} is outside {low} to {high}; the model is damaged")
        return int(number)

    def integers(self, key: str, count: int | None = None) -> Array:
        return self._array(key, int, count)

    def numbers(self, key: str, count: int | None = None) -> Array:
        return self._array(key, float, count)

    def _array(self, key: str, kind: type[int] | type[float], count: int | None) -> Array:
        words = self.text(key).split()
        if count is not None and len(words) != count:
            raise ConversionError(f"{self.place}: {key} has {len(words)} entries, expected {count}; it is damaged")
        try:
            return np.array([kind(word) for word in words], np.int64 if kind is int else np.float64)
        except (ValueError, OverflowError) as error:
            raise ConversionError(f"{self.place}: {key} holds something else than numbers: {error}") from error


def _tree(block: _Block, output: int) -> Tree:
    leaves = block.integer("num_leaves", 1, 2**31 - 1)
    values = block.numbers("leaf_value", leaves)
    linear = _linear(block, leaves) if block.integer("is_linear", 0, 1, default=0) else None
    count = leaves - 1
    if count == 0:
        none = np.zeros(0, np.int64)
        empty = Splits(none, np.zeros(0), none.astype(bool), none.astype(bool), none, none, none, {})
        return make_tree(empty, values, output, linear)
    decision = block.integers("decision_type", count)
    if ((decision < 0) | (decision > 11) | (((decision >> 2) & 3) > 2)).any():
        raise ConversionError(f"{block.place}: a decision_type is not known; the model is damaged")
    threshold = block.numbers("threshold", count)
    categorical = (decision & 1).astype(bool)
    splits = Splits(
        feature=block.integers("split_feature", count),
        threshold=threshold,
        categorical=categorical,
        default_left=((decision >> 1) & 1).astype(bool),
        missing=(decision >> 2) & 3,
        left=block.integers("left_child", count),
        right=block.integers("right_child", count),
        categories=_categories(block, categorical, threshold),
    )
    return make_tree(splits, values, output, linear)


def _categories(block: _Block, categorical: Array, threshold: Array) -> dict[int, Array]:
    """Categories by split: the threshold of a categorical split is the number of its set."""
    if not categorical.any():
        return {}
    bounds, words = block.integers("cat_boundaries"), block.integers("cat_threshold")
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(words) or (np.diff(bounds) < 0).any():
        raise ConversionError(f"{block.place}: cat_boundaries do not fit cat_threshold; the model is damaged")
    sets = {}
    for at in np.flatnonzero(categorical).tolist():
        number = threshold[at]
        if not 0 <= number < len(bounds) - 1:
            raise ConversionError(f"{block.place}: a split asks for category set {number}; the model is damaged")
        first, last = bounds[int(number) : int(number) + 2]
        sets[at] = bit_members(words[first:last])
    return sets


def _linear(block: _Block, leaves: int) -> LinearLeaves:
    sizes = block.integers("num_features", leaves)
    if (sizes < 0).any() or sizes.max() >= 2**31:
        raise ConversionError(f"{block.place}: num_features is out of range; the model is damaged")
    terms = int(sizes.sum())
    return LinearLeaves(
        start=np.concatenate([[0], np.cumsum(sizes)]),
        feature=block.integers("leaf_features", terms),
        coefficient=block.numbers("leaf_coeff", terms),
        constant=block.numbers("leaf_const", leaves),
    )


def _pandas_categorical(rest: str) -> tuple[object, ...]:
    """The last line of a model that was trained on a data frame."""
    found = re.search(r"^pandas_categorical:(.*)$", rest, re.MULTILINE)
    if found is None:
        return ()
    try:
        categories = json.loads(found[1])
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"pandas_categorical is no readable JSON: {error}") from error
    return tuple(categories) if isinstance(categories, list) else ()
