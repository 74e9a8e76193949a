"""PyTorch's EmbeddingBag: exporters write it as a loop over bags, which is recognised and becomes one operator.

Bags of one fixed size become a sum, mean or maximum over an axis. A bag without rows gives zero, as PyTorch says. The
older exporter leaves that to the reduction: a mean of nothing, which ONNX leaves open, is zero there too, a maximum of
nothing is minus infinity, as ONNX says and that exporter's models do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.graph import DTYPES, Dim, Node, attribute_shape
from rerank_engine.importers.expressions import Expression, NoExpressionError, Reader, match
from rerank_engine.importers.positions import numbers
from rerank_engine.importers.sequences import joined_of, sequences_of

if TYPE_CHECKING:
    import onnx

    from rerank_engine.importers.onnx import OnnxBuilder

_ONE: Expression = ("ints", (1,))
_FIRST: Expression = ("ints", (0,))
_MODES = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}


@dataclass(frozen=True)
class Bags:
    """What a loop over bags computes.

    Attributes
    ----------
    rows
        Name in the graph of the rows, (L, ...).
    offsets
        Name in the graph of where bags begin and the last one ends, (bags + 1,).
    kept
        Name in the graph of which rows count, (L,) bool; empty for all of them.
    mode
        "sum", "mean" or "max".
    empty
        What a bag without rows gives: "zero", or "identity", what the reduction makes of nothing.
    covers
        Whether the last bag must end with the last row.
    """

    rows: str
    offsets: str
    kept: str
    mode: str
    empty: str
    covers: bool


def embedding_bag(builder: OnnxBuilder, node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Turn a loop over bags into operators.

    Parameters
    ----------
    builder
        Gets the result of the loop: a tensor, or a sequence of which only the members joined are known.
    node, body
        The loop.

    Returns
    -------
    bool
        Whether the loop was such a one; another is left alone.
    """
    try:
        results = Reader(builder).loop(body)
    except NoExpressionError:
        return False
    if len(node.input) == 2 and len(node.output) == 1:
        bags = _stacked(builder, node, results)
        if bags is None:
            return False
        _emit(builder, bags, node.output[0])
        return True
    if len(node.input) == 4 and len(results) == 3:
        bags, place = _collected(builder, node, results)
        if bags is None:
            return False
        joined_of(builder)[node.output[place]] = _emit(builder, bags, None)
        return True
    return False


# --- the older exporter: the loop stacks its results ------------------------------------------------------------


def _stacked(builder: OnnxBuilder, node: onnx.NodeProto, results: list[Expression]) -> Bags | None:
    """Read ``reduce(table[ids[offsets[i] : ends[i]]])``, perhaps with weights."""
    number = ("in", 0, 0)
    start = ("Unsqueeze", ("Gather", "?offsets", number), _FIRST)
    stop = ("Unsqueeze", ("Gather", "?ends", number), _FIRST)
    rows = ("Gather", "?table", ("Slice", "?ids", start, stop))
    weighted = ("Mul", rows, ("Unsqueeze", ("Slice", "?weights", start, stop), _ONE))
    goes_on = builder.array(node.input[1]) if node.input[1] else np.array(True)
    if len(results) != 2 or results[0] != ("true",) or goes_on is None or not goes_on.all():
        return None
    for operator, mode in _MODES.items():
        for form in (rows, weighted):
            found: dict[str, Any] = {}
            if not match((operator, form, _FIRST, 0), results[1], found):
                continue
            names = {key: _name(builder, leaf) for key, leaf in found.items()}
            offsets = names["offsets"]
            if any(not name for name in names.values()) or not _are_ends(builder, names["ends"], offsets):
                return None
            if not _counts(builder, node.input[0], offsets) or len(builder.graph.values[names["ids"]].shape) != 1:
                return None
            table = builder.emit("Gather", [names["table"], names["ids"]])
            if "weights" in names:
                shape = builder.graph.values[names["weights"]].shape
                weights = builder.emit_shaped("Reshape", names["weights"], (*shape, 1))
                table = builder.emit("Mul", [table, weights])
            return Bags(table, offsets, "", mode, "identity" if mode == "max" else "zero", covers=False)
    return None


def _are_ends(builder: OnnxBuilder, ends: str, offsets: str) -> bool:
    """Whether one value holds the other without its first number."""
    arrays = [builder.graph.constants.get(name) for name in (ends, offsets)]
    if arrays[0] is not None and arrays[1] is not None:
        return np.array_equal(arrays[0], arrays[1][1:])
    made = _producer(builder, ends)
    size = builder.graph.values[offsets].shape[0] - 1
    return (
        made is not None
        and made.op == "Slice"
        and made.inputs == (offsets,)
        and made.attributes["start"] == 1
        and made.attributes.get("step", 1) == 1
        and builder.graph.values[ends].shape == (size,)
    )


# --- the newer exporter: the loop collects rows in a sequence ---------------------------------------------------


def _collected(builder: OnnxBuilder, node: onnx.NodeProto, results: list[Expression]) -> tuple[Bags | None, int]:
    """Read the loop that inserts one row a round, and which of its results is the sequence."""
    nothing: tuple[None, int] = (None, 0)
    for place in (0, 1):
        index = ("in", 0, 3 - place)
        row: dict[str, Any] = {}
        counts_up = results[2 - place] == ("Add", index, _ONE)
        inserts = match(("SequenceInsert", ("in", 0, 2 + place), "?row"), results[1 + place], row)
        if not (counts_up and inserts):
            continue
        if sequences_of(builder).get(node.input[2 + place]) != () or node.input[0]:
            return nothing
        first = builder.shape_value(node.input[3 - place])
        ends: dict[str, Any] = {}
        if (
            first is None
            or first.entries != (0,)
            or not match(("Less", ("Add", index, _ONE), "?bags"), results[0], ends)
        ):
            return nothing
        for found, operator, covers in _rows(index, row["row"]):
            bags = _checked(builder, node, found | {"bags": found.get("bags", ends["bags"])}, operator, covers)
            if bags is not None and found.get("bags", ends["bags"]) == ends["bags"]:
                return bags, place
    return nothing


def _rows(index: Expression, row: Expression) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Forms of the row of one bag: what they capture, the reduction, whether the last bag ends with the last row."""
    place = ("Reshape", index, ("ints", (-1,)))
    after = ("Add", place, _ONE)
    start, stop = ("Slice", "?offsets", place, after), ("Slice", "?offsets", after, ("Add", place, ("ints", (2,))))
    part, is_last = ("Slice", "?rows", start, stop), ("Equal", index, ("Sub", "?bags", _ONE))

    def reduced(operator: str, rows: Any) -> Any:
        return (operator, rows, _FIRST, 1)

    length = ("Sub", ("Shape", 0, 1, "?ids"), start)
    total = reduced("ReduceSum", part)
    divided = ("If", ("Greater", length, _FIRST), ("Div", total, ("Cast", 1, length)), total)
    to_end = ("If", is_last, ("Slice", "?rows", start, "?size"), part)
    forms: list[tuple[Any, str]] = [
        (total, "ReduceSum"),
        (("If", is_last, divided, reduced("ReduceMean", part)), "ReduceMean"),
        (reduced("ReduceMax", to_end), "ReduceMax"),
    ]
    for form, operator in forms:
        found: dict[str, Any] = {}
        if match(("If", ("Equal", start, stop), ("zeros",), form), row, found):
            yield found, operator, operator != "ReduceSum"
    begin, end = ("Gather", "?offsets", index), ("Gather", "?offsets", ("Add", index, _ONE))
    chosen = ("Loop", 0, (("none",), ("Less", begin, end), ("ints", ()), begin), _kept_loop(end))
    for operator in _MODES:
        found = {}
        rows = reduced(operator, ("Gather", "?rows", chosen))
        if match(("If", ("Equal", ("Size", chosen), _FIRST), ("zeros",), rows), row, found):
            yield found, operator, False


def _kept_loop(end: Any) -> Any:
    """Results of the inner loop that collects the places of the rows whose id is not the padding."""
    place, places = ("in", 1, 3), ("in", 1, 2)
    index = ("Gather", "?ids", place)
    normal = ("If", ("Less", index, _FIRST), ("Add", index, "?vocabulary"), index)
    longer = ("Concat", places, ("Reshape", place, ("ints", (-1,))))
    following = ("Add", place, _ONE)
    return (
        ("Less", following, end),
        ("If", ("Not", ("Equal", normal, "?padding")), longer, places),
        following,
    )


def _checked(
    builder: OnnxBuilder, node: onnx.NodeProto, found: dict[str, Any], operator: str, covers: bool
) -> Bags | None:
    """Names of what was captured; None when sizes do not belong together."""
    rows, offsets = _name(builder, found["rows"]), _name(builder, found["offsets"])
    if not rows or not offsets or not builder.graph.values[rows].shape:
        return None
    count = builder.graph.values[rows].shape[0]
    size = builder.graph.values[offsets].shape[0] - 1
    if _number(builder, found["bags"]) != size or not _begins(builder, node.input[1], size):
        return None
    if "size" in found and _number(builder, found["size"]) != count:
        return None
    kept = ""
    if "ids" in found:
        ids = _name(builder, found["ids"])
        if not ids or builder.graph.values[ids].shape[0] != count:
            return None
        if "padding" in found:
            kept = _not_padding(builder, ids, found)
    return Bags(_without_ones(builder, rows), offsets, kept, _MODES[operator], "zero", covers)


def _not_padding(builder: OnnxBuilder, ids: str, found: dict[str, Any]) -> str:
    """Name of which ids are not the padding; negative ones count from the end."""
    dtype = builder.graph.values[ids].dtype
    zero, vocabulary, padding = (
        builder.own_constant("sizes", np.array(number, DTYPES[dtype]))
        for number in (0, found["vocabulary"][1][0], found["padding"][1][0])
    )
    negative = builder.emit("Less", [ids, zero])
    normal = builder.emit("Where", [negative, builder.emit("Add", [ids, vocabulary]), ids])
    return builder.emit("Not", [builder.emit("Equal", [normal, padding])])


def _begins(builder: OnnxBuilder, name: str, size: int | Dim) -> bool:
    """Whether the loop starts if there is a bag: ``0 < bags``, known now or computed from the sizes."""
    known = builder.array(name)
    if known is not None:
        return known.size == 1 and bool(known.reshape(-1)[0]) == (isinstance(size, Dim) or size > 0)
    made = _producer(builder, builder.value_name(name))
    if made is None or made.op != "Less":
        return False
    zero = builder.graph.constants.get(made.inputs[0])
    limit = _producer(builder, made.inputs[1])
    return (
        zero is not None
        and zero.size == 1
        and not zero.any()
        and limit is not None
        and limit.op == "Dimensions"
        and attribute_shape(limit.attributes["entries"]) == (size,)
    )


# --- what both become -------------------------------------------------------------------------------------------


def _emit(builder: OnnxBuilder, bags: Bags, output: str | None) -> str:
    size = _fixed_size(builder, bags)
    if size is not None:
        return _emit_fixed(builder, bags, size, output)
    inputs = [bags.rows, bags.offsets, *([bags.kept] if bags.kept else [])]
    attributes = {"mode": bags.mode, "empty": bags.empty, "covers": int(bags.covers)}
    return builder.emit("BagReduce", inputs, attributes, output)


def _emit_fixed(builder: OnnxBuilder, bags: Bags, size: int, output: str | None) -> str:
    """Bags of one size: an axis of their own, which is reduced; padding counts for nothing."""
    rows = builder.graph.values[bags.rows]
    count, number = builder.graph.values[bags.offsets].shape[0] - 1, DTYPES[rows.dtype].type
    shape = (count, size, *rows.shape[1:])
    tail = (1,) * (len(rows.shape) - 1)
    name = builder.emit_shaped("Reshape", rows.name, shape)
    options = {"axes": (1,), "keepdims": 0}
    operator = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}[bags.mode]
    if not bags.kept:
        return builder.emit(operator, [name], options, output)
    kept = builder.emit_shaped("Reshape", bags.kept, (count, size, *tail))
    nothing = builder.own_constant("nothing", np.array(-np.inf if bags.mode == "max" else 0, number))
    name = builder.emit("Where", [kept, name, nothing])
    if bags.mode == "sum":
        return builder.emit("ReduceSum", [name], options, output)
    zero, one = (builder.own_constant("number", np.array(value, number)) for value in (0, 1))
    counts = builder.emit("ReduceSum", [builder.emit("Cast", [kept], {"to": rows.dtype})], options)
    if bags.mode == "mean":
        total = builder.emit("ReduceSum", [name], options)
        return builder.emit("Div", [total, builder.emit("Max", [counts, one])], output=output)
    largest = builder.emit("ReduceMax", [name], options)
    return builder.emit("Where", [builder.emit("Equal", [counts, zero]), zero, largest], output=output)


def _fixed_size(builder: OnnxBuilder, bags: Bags) -> int | None:
    """Rows of each bag, where offsets are 0, size, 2 size, ... up to the number of rows."""
    total = builder.graph.values[bags.rows].shape[0]
    array = builder.graph.constants.get(bags.offsets)
    if array is not None:
        sizes = set(np.diff(array).tolist())
        fits = len(sizes) == 1 and array[0] == 0 and array[-1] == total and min(sizes) > 0
        return int(sizes.pop()) if fits else None
    joined = _producer(builder, bags.offsets)
    if joined is None or joined.op != "Concat" or len(joined.inputs) != 2:
        return None
    starts = _producer(builder, joined.inputs[0])
    while starts is not None and starts.op in ("Reshape", "Identity", "Cast"):
        starts = _producer(builder, starts.inputs[0])
    if starts is None or starts.op != "Range" or _entry(builder, joined.inputs[1]) != total:
        return None
    size, first = starts.attributes.get("step", 1), starts.attributes.get("start", 0)
    (count,) = attribute_shape(starts.attributes["count"])
    return int(size) if first == 0 and size > 0 and count * size == total else None


def _without_ones(builder: OnnxBuilder, name: str) -> str:
    """What is multiplied by ones, which the newer exporter puts in for weights that are not given."""
    made = _producer(builder, name)
    if made is None or made.op != "Mul":
        return name
    ones = _producer(builder, made.inputs[1])
    while ones is not None and ones.op == "Reshape":
        ones = _producer(builder, ones.inputs[0])
    filled = builder.graph.constants.get(ones.inputs[0] if ones is not None and ones.op == "Expand" else made.inputs[1])
    same = builder.graph.values[made.inputs[0]].shape == builder.graph.values[name].shape
    return made.inputs[0] if filled is not None and same and bool((filled == 1).all()) else name


def _producer(builder: OnnxBuilder, name: str) -> Node | None:
    return next((node for node in reversed(builder.graph.nodes) if name in node.outputs), None)


def _name(builder: OnnxBuilder, leaf: Expression) -> str:
    """Name in the graph of a value around the loop; empty for anything else."""
    if leaf[0] == "outer":
        return builder.value_name(leaf[1])
    return numbers(builder, leaf[1]) if leaf[0] == "ints" else ""


def _number(builder: OnnxBuilder, leaf: Expression) -> int | Dim | None:
    if leaf[0] == "ints":
        return leaf[1][0] if len(leaf[1]) == 1 else None
    known = builder.shape_value(leaf[1]) if leaf[0] == "outer" else None
    return known.entries[0] if known is not None and len(known.entries) == 1 else None


def _entry(builder: OnnxBuilder, name: str) -> int | Dim | None:
    """The one size that a value of the graph holds."""
    array = builder.graph.constants.get(name)
    if array is not None:
        return int(array.item()) if array.size == 1 else None
    made = _producer(builder, name)
    if made is None or made.op != "Dimensions":
        return None
    entries = attribute_shape(made.attributes["entries"])
    return entries[0] if len(entries) == 1 else None


def _counts(builder: OnnxBuilder, name: str, offsets: str) -> bool:
    """Whether the loop runs once for each bag."""
    known = builder.shape_value(name) if name else None
    return known is not None and known.entries == (builder.graph.values[offsets].shape[0] - 1,)
