"""One tree of an XGBoost model in neutral terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.model import CATEGORY, LESS, Array, Tree, one_leaf_each
from rerank_engine.importers.trees.sources import Fields

_LARGEST_CATEGORY = 2**24
"""XGBoost takes float32 values from here on for no category."""


def parse_tree(entry: Any, place: str, outputs: int, group: int, weight: float) -> Tree:
    """Read a tree.

    Parameters
    ----------
    entry
        The tree as parsed.
    place
        Where it stands, for messages.
    outputs
        Outputs of the model.
    group
        The output that the tree adds to.
    weight
        Factor of its leaves.

    Raises
    ------
    ConversionError
        The tree is damaged; the message names the list.
    """
    tree = Fields(entry, place)
    parameters = tree.object("tree_param")
    count = parameters.integer("num_nodes", low=1)
    left, right = tree.integers("left_children", count), tree.integers("right_children", count)
    default_left = tree.integers("default_left", count).astype(bool)
    feature = tree.integers("split_indices", count)
    condition = tree.singles("split_conditions", count)
    kind = tree.integers("split_type", count) if "split_type" in tree else np.zeros(count, np.int64)
    inner = left != -1
    for following in (left[inner], right[inner]):
        if ((following < 0) | (following >= count)).any():
            raise ConversionError(f"{place}: a child is outside 0 to {count - 1}; the model is damaged")
    if not np.isin(kind, (0, 1)).all():
        raise tree.bad("split_type", "0 for numbers and 1 for categories")
    if not 0 <= group < outputs:
        raise ConversionError(f"{place} adds to output {group} of {outputs}; the model is damaged")
    size = parameters.integer("size_leaf_vector", 1)
    if size > 1:
        leaves = _vector_leaves(tree, size, outputs, inner, right)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            leaves = one_leaf_each(np.float32(weight) * condition[~inner], group)
    number = np.where(inner, np.cumsum(inner) - 1, -np.cumsum(~inner))
    categorical = kind[inner] == 1
    ways = np.stack([number[np.where(inner, side, 0)][inner] for side in (left, right)])
    # Members of the set go right, everything else left: yes is the right child.
    yes, no = np.where(categorical, ways[::-1], ways)
    return Tree(
        feature=feature[inner],
        question=np.where(categorical, CATEGORY, LESS),
        threshold=condition[inner].astype(np.float64),
        missing_yes=default_left[inner] != categorical,
        yes=yes,
        no=no,
        leaf_start=leaves[0],
        leaf_target=leaves[1],
        leaf_weight=leaves[2],
        members=_categories(tree, number, inner, kind),
    )


def _vector_leaves(tree: Fields, size: int, outputs: int, inner: Array, right: Array) -> tuple[Array, Array, Array]:
    """Leaves with a value for every output; since version 3.2 in a list of their own, numbered by the right child."""
    if size != outputs:
        raise ConversionError(f"{tree.place}: leaves of {size} values for {outputs} outputs; the model is damaged")
    count = int((~inner).sum())
    if "leaf_weights" in tree:
        values, rows = tree.singles("leaf_weights"), right[~inner]
    else:
        values, rows = tree.singles("base_weights"), np.flatnonzero(~inner)
    if len(values) % size or ((rows < 0) | (rows >= len(values) // size)).any():
        raise ConversionError(f"{tree.place}: leaves without values; the model is damaged")
    weights = values.reshape(-1, size)[rows]
    return np.arange(count + 1) * size, np.tile(np.arange(size), count), weights.reshape(-1)


def _categories(tree: Fields, number: Array, inner: Array, kind: Array) -> dict[int, Array]:
    """Categories by split."""
    if not (inner & (kind == 1)).any():
        return {}
    nodes = tree.integers("categories_nodes")
    first, sizes = tree.integers("categories_segments", len(nodes)), tree.integers("categories_sizes", len(nodes))
    categories = tree.integers("categories")
    total = len(categories)
    if ((first < 0) | (sizes < 0) | (first > total) | (sizes > total - first)).any() or int(sizes.sum()) > total:
        raise ConversionError(f"{tree.place}: categories_segments lie outside the categories; the model is damaged")
    if total and (categories.min() < 0 or categories.max() >= _LARGEST_CATEGORY):
        raise tree.bad("categories", f"categories from 0 to {_LARGEST_CATEGORY - 1}")
    sets = {}
    for node, start, size in zip(nodes.tolist(), first.tolist(), sizes.tolist(), strict=True):
        if not 0 <= node < len(inner) or not inner[node] or kind[node] != 1:
            raise ConversionError(f"{tree.place}: node {node} has categories but no categorical split; it is damaged")
        sets[int(number[node])] = categories[start : start + size]
    if len(sets) != int((inner & (kind == 1)).sum()):
        raise ConversionError(f"{tree.place}: a categorical split has no categories; the model is damaged")
    return sets
