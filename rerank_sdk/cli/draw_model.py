"""Costs and drawings of a model, for ``rerank inspect``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rerank_engine.errors import ConversionError, DataError
from rerank_sdk.cli.output import console, make_table, show_facts, show_table

if TYPE_CHECKING:
    from rerank_engine.dimensions import Dim
    from rerank_engine.graph import Graph


def svg_path(path: Path | None) -> Path | None:
    """Check the name of a drawing, before the work that it shows."""
    if path is not None and path.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{str(path)!r} does not end with .svg")
    return path


def source_of(path: Path) -> str | None:
    """Name of the framework whose model a file or folder is; None for ONNX, which has no mark, and for others."""
    from rerank_engine.importers.kinds import find_kind

    try:
        name = find_kind(path).name
    except (ConversionError, OSError):
        return None
    return None if name == "ONNX" else name


def describe_cost(graph: Graph) -> dict[str, Any]:
    """Parameters, bytes and arithmetic: of the model, by operator, and of each node.

    What depends on named dimensions is a text, such as ``"4096*N+12"``; everything else is a number.

    Raises
    ------
    UnsupportedOperatorError
        A node uses an operator, an attribute or a shape that is not understood.
    GraphError
        A declared dtype or shape is not what the operator makes.
    """
    from rerank_engine.inspect import cost

    counted = cost(graph)
    rows: dict[str, dict[str, Any]] = {}
    for node in counted.nodes:
        row = rows.setdefault(node.op, {"operator": node.op, "nodes": 0, "flops": 0, "bytes_moved": 0})
        row["nodes"] += 1
        row["flops"] += node.flops
        row["bytes_moved"] += node.bytes_moved
    per_candidate = counted.flops_per_candidate
    return {
        "flops": _plain(counted.flops),
        "flops_once": _plain(counted.flops_once),
        "flops_candidates": _plain(counted.flops_candidates),
        "flops_per_candidate": None if per_candidate is None else _plain(per_candidate),
        "bytes_moved": _plain(counted.bytes_moved),
        "activation_bytes": _plain(counted.activation_bytes),
        "parameters": counted.parameters,
        "constant_bytes": counted.constant_bytes,
        "operators": [
            {**row, "flops": _plain(row["flops"]), "bytes_moved": _plain(row["bytes_moved"])}
            for row in sorted(rows.values(), key=_weight)
        ],
        "nodes": [
            {
                "name": node.name,
                "operator": node.op,
                "runs": node.mode,
                "flops": _plain(node.flops),
                "bytes_read": _plain(node.bytes_read),
                "bytes_written": _plain(node.bytes_written),
                "parameters": node.parameters,
                "constant_bytes": node.constant_bytes,
            }
            for node in counted.nodes
        ],
    }


def show_cost(found: Mapping[str, Any]) -> None:
    """Print what :func:`describe_cost` found, without the single nodes."""
    facts = [("FLOPs", _amount(found["flops"]))]
    if found["flops_once"] != 0 and found["flops_candidates"] != 0:
        facts += [
            ("once a call", _amount(found["flops_once"])),
            ("with the candidates", _amount(found["flops_candidates"])),
        ]
    facts += [
        ("bytes moved", _amount(found["bytes_moved"])),
        ("bytes of results", _amount(found["activation_bytes"])),
    ]
    show_facts(facts)
    table = make_table("operator", ("nodes", "right"), ("FLOPs", "right"), ("bytes moved", "right"), title="cost")
    for row in found["operators"]:
        table.add_row(row["operator"], f"{row['nodes']:,}", _amount(row["flops"]), _amount(row["bytes_moved"]))
    if table.row_count:
        show_table(table)


def write_svg(graph: Graph, path: Path) -> None:
    """Draw a graph into a file.

    Raises
    ------
    DataError
        The file cannot be written; an existing one is unchanged.
    """
    from rerank_engine.files import write_atomically
    from rerank_engine.inspect import draw_svg

    document = draw_svg(graph)
    try:
        write_atomically(path, [document.encode()])
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}; give another path") from error


def show_graph(graph: Graph) -> None:
    """Print a graph as lines of text, as wide as the terminal, in characters that it has."""
    sys.stdout.write("\n" + graph_text(graph, console().width, sys.stdout.encoding))


def graph_text(graph: Graph, width: int, encoding: str | None) -> str:
    """A graph as lines of text; in ASCII where an encoding lacks the signs of the drawing."""
    from rerank_engine.inspect import draw_text

    drawn = draw_text(graph, width)
    try:
        drawn.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return draw_text(graph, width, ascii_only=True)
    return drawn


def _plain(amount: int | Dim) -> int | str:
    return amount if isinstance(amount, int) else str(amount)


def _amount(amount: int | str) -> str:
    from rerank_engine.dimensions import Dim
    from rerank_engine.inspect.labels import amount_text

    return amount_text(Dim.parse(amount) if isinstance(amount, str) else amount)


def _weight(row: Mapping[str, Any]) -> tuple[int, str]:
    """Most arithmetic first, as far as that can be told of what depends on named dimensions: at 100 for each."""
    from rerank_engine.dimensions import names_in, resolve

    return -resolve(row["flops"], dict.fromkeys(names_in([row["flops"]]), 100)), row["operator"]
