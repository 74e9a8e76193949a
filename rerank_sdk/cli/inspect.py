"""``rerank inspect``: what is in a file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank_sdk.cli.describe import (
    describe_bundle,
    describe_image,
    describe_model,
    describe_store,
    kind_of,
)
from rerank_sdk.cli.draw_model import (
    describe_cost,
    graph_text,
    show_cost,
    show_graph,
    source_of,
    svg_path,
    write_svg,
)
from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import console, make_table, print_json, say, show_facts, show_table, size_text
from rerank_sdk.cli.pass_changes import describe_changes, show_changes
from rerank_sdk.cli.show_model import show_model, show_plan
from rerank_sdk.cli.sources import prepare_output

if TYPE_CHECKING:
    from rerank_engine.model import Model


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            help="A model (.rrm), bundle (.rrb), source model (ONNX, TFLite, LightGBM, ...), machine code (.rri),"
            " events.db or its folder.",
        ),
    ],
    passes: Annotated[bool, typer.Option("--passes", help="Source models only: what each pass changes.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Compile or load the model; show target, memory, steps.")
    ] = False,
    candidates: Annotated[
        str | None, typer.Option(help="Source models only: name of the dimension that counts candidates.")
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Draw the model's graph as text.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", dir_okay=False, callback=svg_path, help="Draw the model's graph into an SVG file."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what is in a file."""
    source = source_of(file)
    if file.is_dir() and source is None:
        file = file / "events.db"
        if not file.exists():
            raise typer.BadParameter(f"folder {str(file.parent)!r} has no events.db", param_hint="FILE")
    kind = "source" if source is not None else kind_of(file)
    if kind not in ("onnx", "source") and (passes or candidates is not None):
        option = "--passes" if passes else "--candidates"
        raise typer.BadParameter(f"only a source model is converted; {file} is a {kind}", param_hint=option)
    if plan and kind in ("image", "store"):
        way_out = "shows its plan without it" if kind == "image" else "has none"
        raise typer.BadParameter(f"a model's plan is shown; a file of kind {kind} {way_out}", param_hint="--plan")
    if (graph or svg is not None) and kind in ("image", "store"):
        option = "--graph" if graph else "--svg"
        raise typer.BadParameter(f"a model's graph is drawn; a file of kind {kind} has none", param_hint=option)
    size = sum(one.stat().st_size for one in (file.rglob("*") if file.is_dir() else [file]) if one.is_file())
    found: dict[str, Any] = {"file": str(file), "kind": kind, "bytes": size}
    if kind == "image":
        found |= describe_image(file)
    elif kind == "store":
        found |= describe_store(file)
    else:
        model, described = _read_model(file, kind, candidates)
        found |= described
        found["cost"] = describe_cost(model.graph)
        if passes:
            found["passes"] = describe_changes(model.reports)
        if plan:
            from rerank_engine import load

            found["plan"] = load(model, search_s=0).explain()
        if svg is not None:
            write_svg(model.graph, prepare_output(svg))
            found["svg"] = str(svg)
        if graph and json:
            found["graph"] = graph_text(model.graph, console().width, "utf-8")
    if source is not None:
        found["source"] = source
    if json:
        print_json(found)
        return
    _show(found)
    if graph:
        show_graph(model.graph)
    if svg is not None:
        say(f"drawn into {svg} ({size_text(svg.stat().st_size)})")


def _read_model(file: Path, kind: str, candidates: str | None) -> tuple[Model, dict[str, Any]]:
    """The model in a file, and what is said of the file."""
    from rerank_engine.model import Model

    if kind == "bundle":
        from rerank_sdk.bundle import Bundle

        bundle = Bundle.read(file)
        return bundle.model(), describe_bundle(bundle)
    if kind == "model":
        model = Model.read(file)
    else:
        from rerank_engine import convert

        model = convert(file, candidates=candidates)
    return model, {"model": describe_model(model)}


def _show(found: Mapping[str, Any]) -> None:
    converted = found["kind"] in ("onnx", "source")
    kind = f"{found.get('source', 'ONNX')} model, converted to be shown" if converted else found["kind"]
    show_facts([("file", found["file"]), ("kind", kind), ("size", size_text(found["bytes"]))])
    if found["kind"] == "store":
        _show_store(found)
    elif found["kind"] == "image":
        show_plan(found)
    else:
        if found["kind"] == "bundle":
            _show_bundle(found)
        else:
            say()
        show_model(found["model"])
        show_cost(found["cost"])
    if "passes" in found:
        show_changes(found["passes"])
    if "plan" in found:
        show_plan(found["plan"])


def _show_bundle(found: Mapping[str, Any]) -> None:
    features = found["features"]
    show_facts(
        [
            ("bundle", found["name"]),
            *((name.replace("_", " "), value) for name, value in found["facts"].items()),
            ("features", f"{features['name']}: {features['dense_columns']} dense columns"),
            ("id arrays", features["ids"]),
            ("histories", [f"{name} (newest {length})" for name, length in features["sequences"].items()]),
        ]
    )
    table = make_table("feature group", ("columns", "right"), "names")
    for group, names in features["groups"].items():
        table.add_row(group, str(len(names)), ", ".join(names))
    show_table(table)


def _show_store(found: Mapping[str, Any]) -> None:
    names = ("schema_version", "users", "events", "examples", "patches", "remembered_items")
    facts = [(name.replace("_", " "), found[name]) for name in names]
    if found["first_event_ms"] is not None:
        facts.append(("time", f"{_time_text(found['first_event_ms'])} to {_time_text(found['last_event_ms'])}"))
    show_facts(facts)
    table = make_table("event kind", ("events", "right"))
    for kind, count in found["events_by_kind"].items():
        table.add_row(kind, f"{count:,}")
    if table.row_count:
        show_table(table)


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
