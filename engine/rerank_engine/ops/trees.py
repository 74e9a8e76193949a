"""Ensembles of decision trees, stored as arrays of nodes and leaves.

Every split asks one question: does the feature lie in an interval? Intervals are taken over *order keys*, the bits
of a float turned so that integers sort as the floats do. All NaN stand next to each other on the circle of keys, so
one interval holds a threshold and the way of missing values at once, and no comparison of floats takes part: results
do not depend on how a processor treats denormal numbers.

    key(x) = bits(x) ^ ((bits(x) >> 31) & 0x7fffffff)          (float64: 63 and 0x7fffffffffffffff)
    yes    = (key(x) - low) mod 2^32 <= span                   both unsigned

Categories are the other kind of question: is the truncated feature a member of a set of bits?

Constant inputs, after the features (N, F):

==================  ============  ===========================================================================
tree_start          (T + 1,)      first node of each tree; its nodes are [tree_start[t], tree_start[t + 1])
nodes               (M, 4)        feature, kind, next if yes, next if no; next < 0 is leaf ``~next``
ranges              (M, 2)        low and span of the interval; or first word and number of words of the set
bitsets             (W,)          words of all sets, at least one
leaf_start          (L + 1,)      first entry of each leaf
leaf_target         (E,)          output that an entry adds to
leaf_weight         (E,)          what it adds; its dtype is that of the sum
base                (K,)          start of each output
linear_start        (L + 1,)      first term of each leaf's linear model      (these four only for linear leaves)
linear_feature      (C,)          feature of a term
linear_coefficient  (C,)          its factor
linear_constant     (L,)          constant of the linear model
==================  ============  ===========================================================================

All integers are int32 but ``ranges`` for float64 features, which is int64. A child has a higher number than its
parent and belongs to the same tree, a leaf to one tree: a walk ends, and one row costs no more steps than there are
nodes and entries, whatever file the arrays came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import GraphError
from rerank_engine.graph import Node, Shape, Value, shape_text
from rerank_engine.ops.registry import Array, Operator, attribute, refuse, register, rows_of_first

if TYPE_CHECKING:
    from rerank_engine.codegen.lowering import Lowering

INTERVAL = 0
"""Kind of a node that asks for an interval of order keys."""

MEMBER = 1
"""Kind of a node that asks for membership of a set of bits; the two flags below are added to it."""

MEMBER_FROM_MINUS_ONE = 2
"""Values between -1 and 0 are category 0, as truncation says; without it every negative value is outside."""

MEMBER_IF_MISSING = 4
"""NaN is a member."""

_KINDS = (INTERVAL, MEMBER, MEMBER | 2, MEMBER | 4, MEMBER | 6)
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
_CHUNK_CELLS = 1 << 18


@dataclass(frozen=True)
class KeyRange:
    """Marks on the circle of order keys of one float type.

    Attributes
    ----------
    dtype
        Of the keys.
    mask
        All bits but the sign.
    negative_infinity, infinity
        Keys of the infinities.
    first_nan, last_nan
        The interval of all NaN; it runs over the largest key to the smallest.
    """

    dtype: np.dtype[Any]
    mask: int
    negative_infinity: int
    infinity: int
    first_nan: int
    last_nan: int


def _key_range(exponent_bits: int, dtype: type[np.signedinteger[Any]]) -> KeyRange:
    bits = np.iinfo(dtype).bits
    infinity = ((1 << exponent_bits) - 1) << (bits - 1 - exponent_bits)
    return KeyRange(np.dtype(dtype), (1 << (bits - 1)) - 1, -infinity - 1, infinity, infinity + 1, -infinity - 2)


KEY_RANGES: Mapping[str, KeyRange] = {"float32": _key_range(8, np.int32), "float64": _key_range(11, np.int64)}
"""Marks by dtype of the features."""


def order_keys(values: Array) -> Array:
    """Turn floats into integers of the same order; -0.0 comes right before 0.0.

    Parameters
    ----------
    values
        float32 or float64, any shape.

    Returns
    -------
    ndarray
        int32 or int64 of the same shape. The function is its own inverse on bits.

    Examples
    --------
    >>> order_keys(np.array([-np.inf, -1.0, -0.0, 0.0, 1.0], np.float32)).tolist()
    [-2139095041, -1065353217, -1, 0, 1065353216]
    """
    marks = KEY_RANGES[values.dtype.name]
    bits = np.ascontiguousarray(values).view(marks.dtype)
    return np.asarray(bits ^ ((bits >> (marks.dtype.itemsize * 8 - 1)) & marks.mask))


@dataclass(frozen=True)
class EnsembleArrays:
    """The constant inputs of a TreeEnsemble node, in their order; the module's text says what each holds."""

    tree_start: Array
    nodes: Array
    ranges: Array
    bitsets: Array
    leaf_start: Array
    leaf_target: Array
    leaf_weight: Array
    base: Array
    linear_start: Array | None = None
    linear_feature: Array | None = None
    linear_coefficient: Array | None = None
    linear_constant: Array | None = None

    @property
    def features_dtype(self) -> str:
        """Dtype of the features that the intervals were made for."""
        return "float32" if self.ranges.dtype == np.int32 else "float64"

    @property
    def has_one_entry_a_leaf(self) -> bool:
        """Whether entry number i is the only one of leaf number i."""
        return bool(np.array_equal(self.leaf_start, np.arange(len(self.leaf_start))))

    def named(self) -> dict[str, Array]:
        """The arrays that are there, by name, in order."""
        arrays = {name: getattr(self, name) for name in INPUT_NAMES}
        return {name: array for name, array in arrays.items() if array is not None}


INPUT_NAMES = tuple(field.name for field in fields(EnsembleArrays))
"""Names of the constant inputs, in order."""

_PLAIN_COUNT = 1 + INPUT_NAMES.index("linear_start")
_LINEAR_COUNT = 1 + len(INPUT_NAMES)


def find_problem(arrays: EnsembleArrays, features: int, aggregate: str) -> str | None:
    """Say what makes the arrays unsafe to walk, or None. Shapes and dtypes are those that the shape rule checks."""
    return next(_problems(arrays, features, aggregate), None)


def _problems(arrays: EnsembleArrays, features: int, aggregate: str) -> Iterator[str]:
    start, nodes = arrays.tree_start, arrays.nodes
    count, leaves = len(nodes), len(arrays.leaf_start) - 1
    if not len(start) or start[0] != 0 or start[-1] != count or (np.diff(start) < 1).any():
        yield f"tree_start must rise from 0 to the number of nodes, {count}"
        return
    if (nodes[:, 0] < 0).any() or (nodes[:, 0] >= features).any():
        yield f"a node asks for a feature outside 0 to {features - 1}"
    if not np.isin(nodes[:, 1], _KINDS).all():
        yield "a node is of an unknown kind"
    tree = np.repeat(np.arange(len(start) - 1), np.diff(start))
    owner = np.full(leaves, -1, np.int64)
    for following in (nodes[:, 2], nodes[:, 3]):
        inner = following >= 0
        if (following[inner] <= np.flatnonzero(inner)).any() or (following[inner] >= start[tree[inner] + 1]).any():
            yield "a node leads to one that does not come after it in its tree"
        if (following[~inner] < -leaves).any():
            yield f"a node leads to a leaf outside 0 to {leaves - 1}"
            return
        leaf = ~following[~inner].astype(np.int64)
        taken = owner[leaf]
        if ((taken != -1) & (taken != tree[~inner])).any():
            yield "two trees share a leaf"
        owner[leaf] = tree[~inner]
        if (owner[leaf] != tree[~inner]).any():
            yield "two trees share a leaf"
    member = nodes[:, 1] != INTERVAL
    first, words = (arrays.ranges[member, column].astype(np.int64) for column in (0, 1))
    total = len(arrays.bitsets)
    if ((first < 0) | (first > total) | (words < 0) | (words > total - first)).any():
        yield f"a set of categories lies outside the {total} words"
    yield from _leaf_problems(arrays, features, aggregate)


def _leaf_problems(arrays: EnsembleArrays, features: int, aggregate: str) -> Iterator[str]:
    outputs, entries = len(arrays.base), len(arrays.leaf_weight)
    sizes = np.diff(arrays.leaf_start)
    if arrays.leaf_start[0] != 0 or arrays.leaf_start[-1] != entries or (sizes < 0).any() or (sizes > outputs).any():
        yield f"leaf_start must rise from 0 to the number of entries, {entries}, by at most {outputs} a leaf"
    if (arrays.leaf_target < 0).any() or (arrays.leaf_target >= outputs).any():
        yield f"a leaf adds to an output outside 0 to {outputs - 1}"
    if aggregate in ("MIN", "MAX") and not np.isfinite(arrays.leaf_weight).all():
        yield f"a leaf's weight is not finite, which {aggregate} does not allow"
    if arrays.linear_start is None:
        return
    assert arrays.linear_feature is not None, "the shape rule wants all four or none"
    start, terms = arrays.linear_start, len(arrays.linear_feature)
    if start[0] != 0 or start[-1] != terms or (np.diff(start) < 0).any():
        yield f"linear_start must rise from 0 to the number of terms, {terms}"
    if (arrays.linear_feature < 0).any() or (arrays.linear_feature >= features).any():
        yield f"a linear leaf asks for a feature outside 0 to {features - 1}"
    if not arrays.has_one_entry_a_leaf:
        yield "linear leaves must have one entry each"


def _infer(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    if len(inputs) not in (_PLAIN_COUNT, _LINEAR_COUNT):
        raise refuse(node, f"takes {_PLAIN_COUNT} or {_LINEAR_COUNT} inputs, has {len(inputs)}")
    features, constants = inputs[0], dict(zip(INPUT_NAMES, inputs[1:], strict=False))
    width = attribute(node, "features")
    if features.dtype not in KEY_RANGES or len(features.shape) != 2 or features.shape[1] != width:
        raise refuse(node, f"features must be float32 or float64 of shape (N, {width}), are {features}")
    if type(width) is not int or width < 1:
        raise refuse(node, f"attribute features={width!r}: expected a number of columns")
    sums = constants["leaf_weight"].dtype
    if sums not in KEY_RANGES:
        raise refuse(node, f"leaf_weight must be float32 or float64, is {sums}")
    trees, nodes, words, leaves, entries, outputs = (
        constants[name].shape[0] if constants[name].shape else 0
        for name in ("tree_start", "nodes", "bitsets", "leaf_start", "leaf_weight", "base")
    )
    wanted: dict[str, tuple[str, Shape]] = {
        "tree_start": ("int32", (trees,)),
        "nodes": ("int32", (nodes, 4)),
        "ranges": (KEY_RANGES[features.dtype].dtype.name, (nodes, 2)),
        "bitsets": ("int32", (words,)),
        "leaf_start": ("int32", (leaves,)),
        "leaf_target": ("int32", (entries,)),
        "leaf_weight": (sums, (entries,)),
        "base": (sums, (outputs,)),
    }
    if len(inputs) == _LINEAR_COUNT:
        terms = constants["linear_feature"].shape[0] if constants["linear_feature"].shape else 0
        wanted |= {
            "linear_start": ("int32", (leaves,)),
            "linear_feature": ("int32", (terms,)),
            "linear_coefficient": (sums, (terms,)),
            "linear_constant": (sums, (leaves - 1,)),
        }
    for name, (dtype, shape) in wanted.items():
        if (constants[name].dtype, constants[name].shape) != (dtype, shape):
            raise refuse(node, f"{name} must be {dtype}{shape_text(shape)}, is {constants[name]}")
    if any(not isinstance(size, int) or size < 1 for size in (trees, words, leaves, outputs)):
        raise refuse(node, "tree_start, bitsets, leaf_start and base must have a fixed size of at least 1")
    _check_attributes(node)
    return [(sums, (features.shape[0], outputs))]


def _check_attributes(node: Node) -> None:
    aggregate = attribute(node, "aggregate")
    if aggregate not in AGGREGATES:
        raise refuse(node, f"aggregate {aggregate!r} is not known; known: {', '.join(AGGREGATES)}")
    divisor, zero = attribute(node, "divisor"), attribute(node, "zero_threshold")
    if not 0 < divisor < np.inf or (divisor != 1 and aggregate != "AVERAGE"):
        raise refuse(node, f"divisor {divisor} must be positive, and 1 for {aggregate}")
    if not 0 <= zero < np.inf:
        raise refuse(node, f"zero_threshold {zero} must be finite and not negative")


def _check_constants(node: Node, constants: Mapping[str, Array]) -> None:
    for name, given in zip(INPUT_NAMES, node.inputs[1:], strict=False):
        if given not in constants:
            raise GraphError(f"TreeEnsemble node {node.name!r}: input {name} ({given!r}) must be constant")
    arrays = EnsembleArrays(*(constants[name] for name in node.inputs[1:]))
    problem = find_problem(arrays, node.attributes["features"], attribute(node, "aggregate"))
    if problem is not None:
        raise GraphError(f"TreeEnsemble node {node.name!r}: {problem}")


def _reference(inputs: Sequence[Array], attributes: Mapping[str, Any], _: Sequence[tuple[int, ...]]) -> list[Array]:
    arrays = EnsembleArrays(*inputs[1:])
    aggregate = attributes["aggregate"]
    if (problem := find_problem(arrays, attributes["features"], aggregate)) is not None:
        raise GraphError(f"TreeEnsemble: {problem}")
    # In double precision the features come widened; their keys are those of the dtype that the model declares.
    features = np.asarray(inputs[0], dtype=arrays.features_dtype)
    start = {"SUM": arrays.base, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}[aggregate]
    result = np.full((len(features), len(arrays.base)), start, dtype=arrays.leaf_weight.dtype)
    keys = order_keys(features)
    step = max(1, _CHUNK_CELLS // max(1, len(features)))
    with np.errstate(all="ignore"):
        values = features.astype(result.dtype)
        values[np.abs(values) <= attributes["zero_threshold"]] = 0
        for first in range(0, len(arrays.tree_start) - 1, step):
            leaves = _walk(arrays, keys, arrays.tree_start[first : min(first + step, len(arrays.tree_start) - 1)])
            for column in range(leaves.shape[1]):
                _add_leaves(arrays, leaves[:, column], values, aggregate, result)
        if aggregate == "AVERAGE":
            result = result / result.dtype.type(attributes["divisor"]) + arrays.base
        elif aggregate != "SUM":
            result = np.where(np.isinf(result), 0, result) + arrays.base
    return [np.asarray(result, dtype=arrays.leaf_weight.dtype)]


def _walk(arrays: EnsembleArrays, keys: Array, roots: Array) -> Array:
    """The leaf of each row in each tree."""
    reached = np.tile(roots.astype(np.int64), (len(keys), 1))
    rows, columns = (axis.reshape(-1) for axis in np.indices(reached.shape))
    current = reached.reshape(-1)
    while rows.size:
        node = arrays.nodes[current]
        yes = _answer(arrays, current, node[:, 1], keys[rows, node[:, 0]])
        current = np.where(yes, node[:, 2], node[:, 3]).astype(np.int64)
        reached[rows, columns] = current
        inner = current >= 0
        rows, columns, current = rows[inner], columns[inner], current[inner]
    return ~reached


def _answer(arrays: EnsembleArrays, current: Array, kind: Array, key: Array) -> Array:
    marks = KEY_RANGES[arrays.features_dtype]
    unsigned = np.dtype(f"u{marks.dtype.itemsize}")
    low, span = arrays.ranges[current, 0], arrays.ranges[current, 1]
    yes = (key - low).view(unsigned) <= np.ascontiguousarray(span).view(unsigned)
    sets = np.flatnonzero(kind != INTERVAL)
    if not sets.size:
        return yes
    kind, key, first, words = kind[sets], key[sets], low[sets].astype(np.int64), span[sets].astype(np.int64)
    bits = np.ascontiguousarray(key ^ ((key >> (marks.dtype.itemsize * 8 - 1)) & marks.mask))
    value = bits.view(arrays.features_dtype)
    category = np.where(np.abs(value) < 2.0**31, value, -1.0).astype(np.int64)
    inside = (category >= 0) & (category < 32 * words)
    word = arrays.bitsets[np.where(inside, first + (category >> 5), 0)].astype(np.int64)
    member = inside & ((word >> (category & 31)) & 1).astype(bool)
    member &= (kind & MEMBER_FROM_MINUS_ONE).astype(bool) | ~(value < 0)
    yes[sets] = np.where(np.isnan(value), (kind & MEMBER_IF_MISSING).astype(bool), member)
    return yes


def _add_leaves(arrays: EnsembleArrays, leaf: Array, values: Array, aggregate: str, result: Array) -> None:
    """Add what one tree says of every row."""
    first, count = arrays.leaf_start[leaf], np.diff(arrays.leaf_start)[leaf]
    for number in range(int(count.max(initial=0))):
        rows = np.flatnonzero(count > number)
        entry = first[rows] + number
        weight = arrays.leaf_weight[entry]
        if arrays.linear_start is not None:
            weight = _linear(arrays, leaf, values, weight)
        place = (rows, arrays.leaf_target[entry])
        known = result[place]
        if aggregate in ("SUM", "AVERAGE"):
            result[place] = known + weight
        else:
            result[place] = (np.minimum if aggregate == "MIN" else np.maximum)(known, weight)


def _linear(arrays: EnsembleArrays, leaf: Array, values: Array, fallback: Array) -> Array:
    """The linear model of each row's leaf; the plain weight where one of its features is missing."""
    assert arrays.linear_start is not None
    assert arrays.linear_feature is not None
    assert arrays.linear_coefficient is not None
    assert arrays.linear_constant is not None
    result = arrays.linear_constant[leaf].copy()
    missing = np.zeros(len(leaf), bool)
    first, count = arrays.linear_start[leaf], np.diff(arrays.linear_start)[leaf]
    for number in range(int(count.max(initial=0))):
        rows = np.flatnonzero(count > number)
        term = first[rows] + number
        value = values[rows, arrays.linear_feature[term]]
        missing[rows] |= np.isnan(value)
        result[rows] += arrays.linear_coefficient[term] * value
    return np.where(missing, fallback, result)


def _lower(lowering: Lowering, node: Node) -> None:
    from rerank_engine.kernels import tree_bits, trees
    from rerank_engine.packing import TREES
    from rerank_engine.tree_tables import SEPARATOR, tables_of_constants

    constants = lowering.graph.constants
    arrays = EnsembleArrays(*(constants[name] for name in node.inputs[1:]))
    features = lowering.values[node.inputs[0]]
    targets = np.unique(arrays.leaf_target)
    names = SEPARATOR.join(node.inputs[1:])
    tables = tables_of_constants(constants, names) if len(targets) == 1 else None
    bits: tree_bits.BitEnsemble | None = None
    needed = INPUT_NAMES
    if tables is not None:
        keys, sums = lowering.scratch(node)
        sum_bytes = arrays.leaf_weight.itemsize
        bits = tree_bits.BitEnsemble(
            features=lowering.address(node.inputs[0]),
            target=lowering.emitter.at(lowering.address(node.outputs[0]), int(targets[0]) * sum_bytes),
            memory=lowering.packed(names, TREES, 0),
            tables=tables,
            keys=keys.address,
            sums=sums.address,
            rows=lowering.rows(features.shape[:1]),
            columns=attribute(node, "features"),
            outputs=len(arrays.base),
            features_dtype=features.dtype,
            sum_dtype=arrays.leaf_weight.dtype.name,
            aggregate=attribute(node, "aggregate"),
        )
        needed = ("base",)
    trees.evaluate_ensemble(
        lowering.emitter,
        trees.Ensemble(
            features=lowering.address(node.inputs[0]),
            target=lowering.address(node.outputs[0]),
            constants={
                name: lowering.address(given)
                for name, given in zip(INPUT_NAMES, node.inputs[1:], strict=False)
                if name in needed
            },
            rows=lowering.rows(features.shape[:1]),
            trees=len(arrays.tree_start) - 1,
            columns=attribute(node, "features"),
            outputs=len(arrays.base),
            features_dtype=features.dtype,
            sum_dtype=arrays.leaf_weight.dtype.name,
            aggregate=attribute(node, "aggregate"),
            divisor=float(attribute(node, "divisor")),
            zero_threshold=float(attribute(node, "zero_threshold")),
            has_sets=bool((arrays.nodes[:, 1] != INTERVAL).any()),
            has_one_entry_a_leaf=arrays.has_one_entry_a_leaf,
            only_output=int(targets[0]) if len(targets) == 1 else None,
            is_linear=arrays.linear_start is not None,
        ),
        bits,
    )


def _scratch(node: Node, inputs: Sequence[Value]) -> list[tuple[str, Shape]]:
    """Order keys and sums of the rows that are scored side by side."""
    from rerank_engine.kernels.tree_bits import MOST_ROWS

    sums = inputs[1 + INPUT_NAMES.index("leaf_weight")].dtype
    return [(inputs[0].dtype, (attribute(node, "features"), MOST_ROWS)), (sums, (MOST_ROWS,))]


register(
    Operator(
        "TreeEnsemble",
        "sum, average, smallest or largest of the leaves that a row reaches in decision trees",
        _infer,
        _reference,
        attributes={"features": None, "aggregate": "SUM", "divisor": 1.0, "zero_threshold": 0.0},
        lower=_lower,
        per_row=rows_of_first,
        scratch=_scratch,
        check_constants=_check_constants,
    )
)
