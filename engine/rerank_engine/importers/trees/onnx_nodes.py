"""Nodes of ONNX's tree operators, in their old and new form, as trees in neutral terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.onnx_file import array_of
from rerank_engine.importers.trees.model import EQUAL, LESS, LESS_EQUAL, VALUE, Tree

Array = NDArray[Any]

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_QUESTIONS = np.array([LESS_EQUAL, LESS, LESS, LESS_EQUAL, EQUAL, EQUAL, VALUE])
_IS_TURNED = np.array([False, False, True, True, False, True, False])
"""The modes whose true branch is where the question's answer is no: x >= t is not x < t."""
_NEQ, _MEMBER = 5, 6
_LEAF = -1


@dataclass(frozen=True)
class NodeLists:
    """Splits and leaves of all trees, numbered through.

    Attributes
    ----------
    tree
        (M,) number of the tree, -1 for nodes of none.
    roots
        (T,) position of the root of each tree.
    mode, feature, value, missing_true, true, false
        (M,) each; the mode of a leaf is -1, children are positions.
    votes
        (V, 2) leaf position and output of each vote.
    weights
        (V,) of the votes.
    members
        Values by position of a membership test.
    """

    tree: Array
    roots: Array
    mode: Array
    feature: Array
    value: Array
    missing_true: Array
    true: Array
    false: Array
    votes: Array
    weights: Array
    members: Mapping[int, Array]


def old_node_lists(found: Mapping[str, Any], votes: str) -> NodeLists:
    """Nodes of the operators before TreeEnsemble: splits and leaves in one list, named by tree and node.

    Parameters
    ----------
    found
        Attributes of the node.
    votes
        "target" or "class", which the names of the leaves' lists start with.

    Raises
    ------
    ConversionError
        The lists do not fit each other.
    """
    tree, number = _integers(found, "nodes_treeids"), _integers(found, "nodes_nodeids")
    count = len(tree)
    feature, values = _integers(found, "nodes_featureids"), float_list(found, "nodes_values")
    ways = [_integers(found, f"nodes_{side}nodeids") for side in ("true", "false")]
    missing = _integers(found, "nodes_missing_value_tracks_true")
    names = [entry.decode("utf-8", "replace") for entry in found["nodes_modes"]]
    if not count or {len(names), *(len(column) for column in (number, feature, values, *ways))} != {count}:
        raise ConversionError("the lists nodes_* differ in length, or are empty")
    if len(missing) not in (0, count):
        raise ConversionError("nodes_missing_value_tracks_true has another length than the other lists")
    if unknown := set(names) - {*_MODES[:_MEMBER], "LEAF"}:
        raise ConversionError(f"node mode {sorted(unknown)[0]!r} is not known")
    mode = np.array([_LEAF if name == "LEAF" else _MODES.index(name) for name in names])
    place = {pair: at for at, pair in enumerate(zip(tree.tolist(), number.tolist(), strict=True))}
    if len(place) != count:
        raise ConversionError("two nodes have the same tree and node id")
    inner = mode != _LEAF
    children = [
        [place.get(pair, -1) if is_inner else -1 for pair, is_inner in zip(pairs, inner.tolist(), strict=True)]
        for pairs in (zip(tree.tolist(), way.tolist(), strict=True) for way in ways)
    ]
    true, false = (np.array(way) for way in children)
    if (true[inner] < 0).any() or (false[inner] < 0).any():
        raise ConversionError("a branch leads to a node that its tree does not have")
    vote_trees, vote_nodes, vote_ids = (_integers(found, f"{votes}_{part}") for part in ("treeids", "nodeids", "ids"))
    weights = float_list(found, f"{votes}_weights")
    if any(len(column) != len(weights) for column in (vote_trees, vote_nodes, vote_ids)):
        raise ConversionError(f"the lists {votes}_* differ in length")
    leaf = [place.get(pair, -1) for pair in zip(vote_trees.tolist(), vote_nodes.tolist(), strict=True)]
    positions = np.array(leaf, np.int64)
    if (positions < 0).any() or (mode[positions] != _LEAF).any():
        raise ConversionError("a vote belongs to a node that is no leaf")
    _, roots, tree_number = np.unique(tree, return_index=True, return_inverse=True)
    return NodeLists(
        tree=tree_number,
        roots=roots,
        mode=mode,
        feature=feature,
        value=values,
        missing_true=missing.astype(bool) if len(missing) else np.zeros(count, bool),
        true=true,
        false=false,
        votes=np.stack([positions, vote_ids], axis=1),
        weights=weights,
        members={},
    )


def new_node_lists(found: Mapping[str, Any]) -> NodeLists:
    """Nodes of TreeEnsemble: splits and leaves in two lists; the leaves are put behind the splits.

    Raises
    ------
    ConversionError
        The lists do not fit each other, or trees share nodes.
    """

    def tensor(name: str, kinds: str) -> Array:
        if found[name] is None:
            raise ConversionError(f"attribute {name} is missing")
        array = array_of(found[name]).reshape(-1)
        if array.dtype.kind not in kinds:
            raise ConversionError(f"attribute {name} holds {array.dtype}")
        return array

    splits, weights = (tensor(name, "f").astype(np.float64) for name in ("nodes_splits", "leaf_weights"))
    mode, feature = tensor("nodes_modes", "ui").astype(np.int64), _integers(found, "nodes_featureids")
    true, false = _integers(found, "nodes_truenodeids"), _integers(found, "nodes_falsenodeids")
    true_leaf, false_leaf = (_integers(found, f"nodes_{side}leafs") for side in ("true", "false"))
    missing = _integers(found, "nodes_missing_value_tracks_true")
    targets, roots = _integers(found, "leaf_targetids"), _integers(found, "tree_roots")
    count, leaves = len(mode), len(weights)
    if any(len(column) != count for column in (splits, feature, true, false, true_leaf, false_leaf)) or not count:
        raise ConversionError("the lists nodes_* differ in length, or are empty")
    if not len(roots):
        raise ConversionError("tree_roots is empty")
    if len(missing) not in (0, count) or len(targets) != leaves:
        raise ConversionError("nodes_missing_value_tracks_true or leaf_targetids has a wrong length")
    if (mode < 0).any() or (mode > _MEMBER).any():
        raise ConversionError("a node mode is not known")
    for way, is_leaf in ((true, true_leaf), (false, false_leaf)):
        if not np.isin(is_leaf, (0, 1)).all() or (way < 0).any() or (way >= np.where(is_leaf, leaves, count)).any():
            raise ConversionError("a branch leads outside the lists")
    tree = _trees_of(roots, true, false, true_leaf, false_leaf)
    # A leaf that several branches lead to is copied: every tree then has leaves of its own.
    copies = count + 2 * np.arange(count)
    true_side, false_side = np.where(true_leaf, copies, true), np.where(false_leaf, copies + 1, false)
    behind = np.stack([np.where(true_leaf, true, 0), np.where(false_leaf, false, 0)], axis=1).reshape(-1)
    used = np.stack([true_leaf, false_leaf], axis=1).reshape(-1).astype(bool)
    blank = np.zeros(2 * count, np.int64)
    return NodeLists(
        tree=np.concatenate([tree, np.repeat(tree, 2)]),
        roots=roots,
        mode=np.concatenate([mode, np.full(2 * count, _LEAF)]),
        feature=np.concatenate([feature, blank]),
        value=np.concatenate([np.where(mode == _MEMBER, 0, splits), blank]),
        missing_true=np.concatenate([missing if len(missing) else np.zeros(count), blank]).astype(bool),
        true=np.concatenate([true_side, blank - 1]),
        false=np.concatenate([false_side, blank - 1]),
        votes=np.stack([np.arange(2 * count)[used] + count, targets[behind[used]]], axis=1),
        weights=weights[behind[used]],
        members=_members(found, mode),
    )


def _trees_of(roots: Array, true: Array, false: Array, true_leaf: Array, false_leaf: Array) -> Array:
    """Number of the tree of each node, in the order of the roots; -1 for nodes of no tree."""
    count = len(true)
    tree = np.full(count, -1, np.int64)
    for number, root in enumerate(roots.tolist()):
        if not 0 <= root < count:
            raise ConversionError(f"tree root {root} is outside the {count} nodes")
        waiting = [root]
        while waiting:
            at = waiting.pop()
            if tree[at] != -1:
                raise ConversionError("trees share a node, or form a circle")
            tree[at] = number
            waiting += [int(way[at]) for way, leaf in ((true, true_leaf), (false, false_leaf)) if not leaf[at]]
    return tree


def _members(found: Mapping[str, Any], mode: Array) -> dict[int, Array]:
    """Members by node: one list, NaN after each set."""
    places = np.flatnonzero(mode == _MEMBER)
    if not len(places):
        return {}
    if found["membership_values"] is None:
        raise ConversionError("membership_values is missing")
    values = np.asarray(array_of(found["membership_values"]), np.float64).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(places):
        raise ConversionError(f"membership_values has {len(ends)} sets for {len(places)} membership nodes")
    starts = np.concatenate([[0], ends[:-1] + 1])
    return {int(at): values[first:last] for at, first, last in zip(places, starts, ends, strict=True)}


def always_voted(nodes: NodeLists, outputs: int) -> Array:
    """Which outputs get a vote from every row: some tree votes for them in all of its leaves."""
    leaves = nodes.mode == _LEAF
    numbers, sizes = np.unique(nodes.tree[leaves], return_counts=True)
    size = dict(zip(numbers.tolist(), sizes.tolist(), strict=True))
    pairs = np.unique(nodes.votes, axis=0)
    voted = np.zeros(outputs, bool)
    counted, counts = np.unique(np.stack([nodes.tree[pairs[:, 0]], pairs[:, 1]], axis=1), axis=0, return_counts=True)
    for (tree, output), count in zip(counted.tolist(), counts.tolist(), strict=True):
        if 0 <= output < outputs and count == size.get(tree):
            voted[output] = True
    return voted


def node_trees(nodes: NodeLists, aggregate: str) -> tuple[Tree, ...]:
    """One tree after another, in the order of their numbers."""
    order = np.argsort(nodes.tree, kind="stable")
    order = order[nodes.tree[order] >= 0]
    bounds = np.flatnonzero(np.diff(nodes.tree[order])) + 1
    groups = [
        np.concatenate([[root], group[group != root]])
        for root, group in zip(nodes.roots.tolist(), np.split(order, bounds), strict=True)
    ]
    inner_number, leaf_number = np.zeros(len(nodes.mode), np.int64), np.zeros(len(nodes.mode), np.int64)
    for group in groups:
        leaves = nodes.mode[group] == _LEAF
        inner_number[group], leaf_number[group] = np.cumsum(~leaves) - 1, np.cumsum(leaves) - 1
    by_leaf = np.lexsort((nodes.votes[:, 1], nodes.votes[:, 0]))
    votes, weights = _joined_votes(nodes.votes[by_leaf], nodes.weights[by_leaf], aggregate)
    return tuple(_tree(nodes, group, inner_number, leaf_number, votes, weights) for group in groups)


def _joined_votes(votes: Array, weights: Array, aggregate: str) -> tuple[Array, Array]:
    """Votes of one leaf for the same output become one."""
    if not len(votes):
        return votes, weights
    fresh = np.concatenate([[True], (np.diff(votes, axis=0) != 0).any(axis=1)])
    if not fresh.all() and aggregate in ("MIN", "MAX"):
        raise ConversionError(f"a leaf has several votes for one output, which {aggregate} does not support")
    return votes[fresh], np.add.reduceat(weights, np.flatnonzero(fresh))


def _tree(
    nodes: NodeLists,
    group: Array,
    inner_number: Array,
    leaf_number: Array,
    votes: Array,
    weights: Array,
) -> Tree:
    leaves = nodes.mode[group] == _LEAF
    if leaves[0] and len(group) > 1:
        raise ConversionError("the first node of a tree is a leaf, but not its only node; it must be the root")
    splits = group[~leaves]

    def numbered(ways: Array) -> Array:
        return np.where(nodes.mode[ways] == _LEAF, ~leaf_number[ways], inner_number[ways])

    mode = nodes.mode[splits]
    turned = _IS_TURNED[mode]
    true, false = numbered(nodes.true[splits]), numbered(nodes.false[splits])
    # NaN differs from every number, so that NEQ holds for it whatever the list says.
    missing_true = nodes.missing_true[splits] | (mode == _NEQ)
    own = group[leaves]
    first, last = np.searchsorted(votes[:, 0], own), np.searchsorted(votes[:, 0], own, side="right")
    entries = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)] or [np.zeros(0, np.int64)])
    place = {int(at): number for number, at in enumerate(splits.tolist())} if nodes.members else {}
    return Tree(
        feature=nodes.feature[splits],
        question=_QUESTIONS[mode],
        threshold=nodes.value[splits],
        missing_yes=missing_true != turned,
        yes=np.where(turned, false, true),
        no=np.where(turned, true, false),
        leaf_start=np.concatenate([[0], np.cumsum(last - first)]),
        leaf_target=votes[entries.astype(np.int64), 1],
        leaf_weight=weights[entries.astype(np.int64)],
        members={place[at]: values for at, values in nodes.members.items() if at in place},
    )


def float_list(found: Mapping[str, Any], name: str) -> Array:
    """Floats of an attribute, or of the tensor that stands for them."""
    tensor = found.get(f"{name}_as_tensor")
    if tensor is not None:
        return np.asarray(array_of(tensor), np.float64).reshape(-1)
    return np.array(found[name], np.float64)


def _integers(found: Mapping[str, Any], name: str) -> Array:
    return np.array(found[name], np.int64)
