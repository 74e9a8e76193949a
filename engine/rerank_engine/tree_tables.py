"""Decision trees as tables of bits: one bit a leaf, one mask a node, no walk.

The leaves of a tree are numbered from its yes-most to its no-most. A node whose answer is no rules out every leaf
below its yes branch. Of the leaves that no node has ruled out, the first is the one that a walk would have reached:
nodes that the walk does not meet can only rule out leaves that lie elsewhere. So all nodes may be asked in any order,
for many rows at once, without a jump (Lucchese et al., *QuickScorer*, SIGIR 2015; with vectors of rows: *Exploiting CPU
SIMD Extensions to Speed-up Document Scoring with Tree Ensembles*, SIGIR 2016).

NumPy only: the tables are made whenever a model is loaded, level by level for all trees at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.arena import joined_bytes, offsets_of

Array = NDArray[Any]

MOST_LEAVES = 64
"""Leaves of a tree: bits of a mask."""

SEPARATOR = "\0"
"""Between the names of the constants that a table is made of; no name contains it."""

UNROLL = 4
"""Nodes of a tree are filled up to a multiple of this with nodes that rule nothing out."""

_INTERVAL = 0


@dataclass(frozen=True)
class TreeTables:
    """What the kernel reads.

    Attributes
    ----------
    features
        Columns that any node asks for, in order, int64 (U,).
    trees
        First node, behind the last node and first leaf of each tree, int64 (T, 3).
    nodes
        Place of the feature among ``features``, low and span of the interval, mask of the leaves that a no leaves over;
        int32 (M, 4), or int64 where intervals or masks need it.
    weights
        What each leaf adds, in the order of bits.
    """

    features: Array
    trees: Array
    nodes: Array
    weights: Array

    def sections(self) -> list[Array]:
        """The tables in the order in which they lie in memory, widest elements first."""
        return [self.features, self.trees, self.nodes, self.weights]

    def offsets(self) -> list[int]:
        """Bytes from the start of the memory to each section."""
        return offsets_of([section.nbytes for section in self.sections()])[:-1]

    def as_bytes(self) -> NDArray[np.uint8]:
        """The memory."""
        return joined_bytes(self.sections())


def tables_of_constants(constants: Mapping[str, Array], names: str) -> TreeTables | None:
    """Tables of the constants whose names are joined by :data:`SEPARATOR`, in the order of a TreeEnsemble's inputs."""
    tree_start, nodes, ranges, _, leaf_start, _, weights, _, *linear = (
        constants[name] for name in names.split(SEPARATOR)
    )
    return None if linear else make_tables(tree_start, nodes, ranges, leaf_start, weights)


def make_tables(tree_start: Array, nodes: Array, ranges: Array, leaf_start: Array, weights: Array) -> TreeTables | None:
    """Make the tables of checked arrays of a TreeEnsemble, see :mod:`rerank_engine.ops.trees`.

    Parameters
    ----------
    tree_start, nodes, ranges, leaf_start
        int32 (T + 1,), (M, 4) and (L + 1,); ranges int32 or int64 (M, 2).
    weights
        float32 or float64, one a leaf.

    Returns
    -------
    TreeTables or None
        None where the ensemble is of another kind: sets of categories, leaves of several entries, more than
        :data:`MOST_LEAVES` leaves in a tree, or two branches that meet again.

    Examples
    --------
    >>> start, nodes = np.array([0, 1], np.int32), np.array([[2, 0, -1, -2]], np.int32)
    >>> ranges, leaves = np.array([[-5, 9]], np.int32), np.array([0, 1, 2], np.int32)
    >>> make_tables(start, nodes, ranges, leaves, np.ones(2)).nodes[0].tolist()
    [0, -5, 9, -2]
    """
    if not np.array_equal(leaf_start, np.arange(len(leaf_start))) or (nodes[:, 1] != _INTERVAL).any() or not len(nodes):
        return None
    children, roots = _without_idle_nodes(nodes[:, 2:4].astype(np.int64), tree_start[:-1].astype(np.int64))
    inner = children[children >= 0]
    if len(np.unique(inner)) < len(inner):
        return None
    levels = _levels(roots, children)
    below = _leaves_below(levels, children)
    if (below[roots].sum(axis=1) > MOST_LEAVES).any():
        return None
    first = _first_leaf(levels, children, below)
    reached = np.concatenate(levels)
    tree_of = np.repeat(np.arange(len(roots)), np.diff(tree_start))
    leaves_of = below[roots].sum(axis=1)
    return TreeTables(
        features=np.unique(nodes[reached, 0]).astype(np.int64),
        **_fill(tree_of, reached, nodes, ranges, below, first, leaves_of),
        weights=_ordered_weights(reached, children, tree_of, below, first, leaves_of, weights),
    )


def _without_idle_nodes(children: Array, roots: Array) -> tuple[Array, Array]:
    """Lead past every node whose branches both go to the same node."""
    nodes = np.arange(len(children))
    is_idle = (children[:, 0] == children[:, 1]) & (children[:, 0] >= 0)
    onward = np.where(is_idle, children[:, 0], nodes)
    while not np.array_equal(onward[onward], onward):
        onward = onward[onward]
    children = np.where(children >= 0, onward[np.maximum(children, 0)], children)
    children[is_idle] = ~0  # Nothing leads here.
    return children, onward[roots]


def _levels(roots: Array, children: Array) -> list[Array]:
    """Nodes at each depth, all trees side by side."""
    levels = [roots]
    while len(levels[-1]):
        following = children[levels[-1]].reshape(-1)
        levels.append(following[following >= 0])
    return levels[:-1]


def _leaves_below(levels: Sequence[Array], children: Array) -> Array:
    """Leaves below the yes and the no branch of each node, (M, 2)."""
    below = np.zeros(children.shape, np.int64)
    for level in reversed(levels):
        following = children[level]
        inner = np.maximum(following, 0)
        below[level] = np.where(following >= 0, below[inner].sum(axis=2), 1)
    return below


def _first_leaf(levels: Sequence[Array], children: Array, below: Array) -> Array:
    """Number of the first leaf below each node, (M,)."""
    first = np.zeros(len(children), np.int64)
    for level in levels:
        yes, no = children[level].T
        first[yes[yes >= 0]] = first[level[yes >= 0]]
        first[no[no >= 0]] = (first[level] + below[level, 0])[no >= 0]
    return first


def _fill(
    tree_of: Array, reached: Array, nodes: Array, ranges: Array, below: Array, first: Array, leaves_of: Array
) -> dict[str, Array]:
    """Nodes tree by tree, filled up with some that rule nothing out."""
    order = np.sort(reached)
    owner = tree_of[order]
    counts = np.bincount(owner, minlength=len(leaves_of))
    padded = -(-counts // UNROLL) * UNROLL
    starts = np.concatenate([[0], np.cumsum(padded)])
    place = starts[owner] + np.arange(len(order)) - np.concatenate([[0], np.cumsum(counts)])[owner]
    wide = ranges.dtype == np.int64 or (leaves_of > 32).any()
    made = np.zeros((starts[-1], 4), np.int64 if wide else np.int32)
    made[:, 2] = -1  # The whole circle of keys: always a yes.
    used = np.unique(nodes[order, 0])
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    length, begin = below[order, 0].astype(np.uint64), first[order].astype(np.uint64)
    # There is a leaf below each no, so a yes branch has fewer than 64.
    ruled_out = ((np.uint64(1) << length) - np.uint64(1)) << begin
    made[place, 0] = np.searchsorted(used, nodes[order, 0])
    made[place, 1:3] = ranges[order]
    made[place, 3] = (ruled_out ^ ones).view(np.int64).astype(made.dtype)
    last_leaves = np.concatenate([[0], np.cumsum(leaves_of)])[:-1]
    return {"trees": np.stack([starts[:-1], starts[1:], last_leaves], axis=1).astype(np.int64), "nodes": made}


def _ordered_weights(
    reached: Array,
    children: Array,
    tree_of: Array,
    below: Array,
    first: Array,
    leaves_of: Array,
    weights: Array,
) -> Array:
    start = np.concatenate([[0], np.cumsum(leaves_of)])[:-1]
    made = np.zeros(int(leaves_of.sum()), weights.dtype)
    for column in (0, 1):
        at_leaf = reached[children[reached, column] < 0]
        bit = first[at_leaf] + (below[at_leaf, 0] if column else 0)
        made[start[tree_of[at_leaf]] + bit] = weights[~children[at_leaf, column]]
    return made
