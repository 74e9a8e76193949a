"""What is in a file of ours, as plain values: models, bundles, machine-code images, event stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine.errors import DataError

if TYPE_CHECKING:
    from rerank_engine.graph import Graph, Value
    from rerank_engine.model import Model
    from rerank_engine.passes.pipeline import PassReport
    from rerank_features import FeatureSpec
    from rerank_sdk.bundle import Bundle

KINDS = "a model (.rrm), a bundle (.rrb), an ONNX model (.onnx), machine code (.rri) or an event store (events.db)"


def kind_of(path: Path) -> str:
    """Tell what a file is by how it starts, and an ONNX model by its name.

    Returns
    -------
    str
        ``"model"``, ``"bundle"``, ``"image"``, ``"store"`` or ``"onnx"``.

    Raises
    ------
    DataError
        It is none of these.
    """
    from rerank_engine.format.layout import MAGIC as MODEL_MAGIC
    from rerank_engine.image import MAGIC as IMAGE_MAGIC

    magics = {MODEL_MAGIC: "model", IMAGE_MAGIC: "image", b"PK\x03\x04": "bundle", b"SQLite format 3\x00": "store"}
    suffixes = {".rrm": "model", ".rri": "image", ".rrb": "bundle", ".onnx": "onnx"}
    with path.open("rb") as file:
        start = file.read(16)
    for magic, kind in magics.items():
        if start.startswith(magic):
            return kind
    # A damaged file goes to the reader of its kind, which says what is wrong with it.
    if path.suffix.lower() in suffixes:
        return suffixes[path.suffix.lower()]
    raise DataError(f"{path} is nothing that can be inspected: expected {KINDS}; it starts with {start!r}")


def describe_model(model: Model) -> dict[str, Any]:
    """Name, identity, inputs, outputs, metadata, and nodes, parameters and bytes by operator."""
    graph = model.graph
    operators = _operators(graph)
    return {
        "name": model.name,
        "content_hash": model.content_hash,
        "inputs": [_value(value) for value in model.inputs],
        "outputs": [_value(value) for value in model.outputs],
        "nodes": len(graph.nodes),
        "parameters": graph.parameter_count(),
        "constant_bytes": sum(array.nbytes for array in graph.constants.values()),
        "metadata": dict(graph.metadata),
        "operators": operators,
    }


def describe_passes(reports: Iterable[PassReport]) -> list[dict[str, Any]]:
    """What each pass of a conversion changed."""
    return [
        {
            "name": report.name,
            "nodes_before": report.nodes_before,
            "nodes_after": report.nodes_after,
            "removed": list(report.removed),
            "added": list(report.added),
        }
        for report in reports
    ]


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """The parts of a bundle: its model, its features, its facts."""
    return {
        "name": bundle.name,
        "facts": dict(bundle.facts),
        "model_bytes": len(bundle.model_bytes),
        "features_bytes": len(bundle.spec_text.encode()),
        "model": describe_model(bundle.model()),
        "features": describe_spec(bundle.spec()),
    }


def describe_spec(spec: FeatureSpec) -> dict[str, Any]:
    """Dense columns by the group that explains them, id arrays, histories, and what items must carry."""
    groups: dict[str, list[str]] = {}
    for feature in spec.dense:
        groups.setdefault(feature.group or feature.name, []).append(feature.name)
    return {
        "name": spec.name,
        "content_hash": spec.content_hash(),
        "dense_columns": len(spec.dense),
        "groups": groups,
        "ids": [feature.name for feature in spec.ids],
        "sequences": {sequence.name: sequence.length for sequence in spec.sequences},
        "session_gap_s": spec.session_gap_s,
        "items": spec.items.model_dump(mode="json"),
        "context": spec.context.model_dump(mode="json"),
    }


def describe_image(path: Path) -> dict[str, Any]:
    """Target, sizes and steps of stored machine code.

    Raises
    ------
    ModelFileError
        It is damaged, not an image, or belongs to another user.
    """
    from rerank_engine.image import Image

    image = Image.read(path)
    shown = ("key", "target", "block", "arena_bytes", "weight_bytes", "compile_ms", "search", "steps")
    return {"code_bytes": len(image.code), **{name: image.meta[name] for name in shown if name in image.meta}}


def describe_store(path: Path) -> dict[str, Any]:
    """How much an event store holds; the file is not changed, and nobody's id is shown.

    Raises
    ------
    StoreError
        It is damaged, another application's, or of a newer version.
    """
    import sqlite3
    from contextlib import closing

    from rerank_sdk.store import schema

    version = schema.inspect(path)
    counted = {
        "users": "users",
        "events": "events",
        "examples": "examples",
        "patches": "patches",
        "remembered_items": "remembered_items",
    }
    with closing(schema.connect_reader(path)) as connection:

        def rows(sql: str) -> list[Sequence[Any]]:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.Error as error:
                raise schema.store_error(path, "read", error) from error

        there = {row[0] for row in rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        # A store of an older version lacks the newer tables.
        counts = {
            name: rows(f"SELECT count(*) FROM {table}")[0][0] if table in there else 0
            for name, table in counted.items()
        }
        kinds: dict[str, int] = {}
        first_ms = last_ms = None
        if "events" in there:
            kinds = dict(
                rows(
                    "SELECT k.kind, count(*) FROM events e JOIN kinds k ON k.id = e.kind_id"
                    " GROUP BY k.kind ORDER BY count(*) DESC, k.kind"
                )  # type: ignore[arg-type]
            )
            first_ms, last_ms = rows("SELECT min(time_ms), max(time_ms) FROM events")[0]
    return {
        "schema_version": version,
        **counts,
        "events_by_kind": kinds,
        "first_event_ms": first_ms,
        "last_event_ms": last_ms,
    }


def _value(value: Value) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else str(dim) for dim in value.shape]
    return {"name": value.name, "dtype": value.dtype, "shape": shape}


def _operators(graph: Graph) -> list[dict[str, Any]]:
    """One row an operator, most bytes first; a constant that several nodes read counts for the first."""
    rows: dict[str, dict[str, Any]] = {}
    counted: set[str] = set()
    for node in graph.nodes:
        row = rows.setdefault(node.op, {"operator": node.op, "nodes": 0, "parameters": 0, "bytes": 0})
        row["nodes"] += 1
        for name in node.inputs:
            array = graph.constants.get(name)
            if array is not None and name not in counted:
                counted.add(name)
                row["parameters"] += array.size if array.dtype.kind == "f" else 0
                row["bytes"] += array.nbytes
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["operator"]))
