"""``rerank inspect``: what is in a file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rerank_sdk.cli.describe import (
    describe_bundle,
    describe_image,
    describe_model,
    describe_passes,
    describe_store,
    kind_of,
)
from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import make_table, print_json, say, show_facts, show_table, size_text
from rerank_sdk.cli.show_model import show_model, show_passes, show_plan


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, help="A model (.rrm), bundle (.rrb), ONNX model, machine code (.rri), events.db or its folder."
        ),
    ],
    passes: Annotated[bool, typer.Option("--passes", help="ONNX only: what each pass changes.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Compile or load the model; show target, memory, steps.")
    ] = False,
    candidates: Annotated[
        str | None, typer.Option(help="ONNX only: name of the dimension that counts candidates.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what is in a file."""
    if file.is_dir():
        file = file / "events.db"
        if not file.exists():
            raise typer.BadParameter(f"folder {str(file.parent)!r} has no events.db", param_hint="FILE")
    kind = kind_of(file)
    if kind != "onnx" and (passes or candidates is not None):
        option = "--passes" if passes else "--candidates"
        raise typer.BadParameter(f"only an ONNX model is converted; {file} is a {kind}", param_hint=option)
    if plan and kind in ("image", "store"):
        way_out = "shows its plan without it" if kind == "image" else "has none"
        raise typer.BadParameter(f"a model's plan is shown; a file of kind {kind} {way_out}", param_hint="--plan")
    found: dict[str, Any] = {"file": str(file), "kind": kind, "bytes": file.stat().st_size}
    if kind == "image":
        found |= describe_image(file)
    elif kind == "store":
        found |= describe_store(file)
    else:
        found |= _describe_model_source(file, kind, candidates, passes=passes, plan=plan)
    if json:
        print_json(found)
    else:
        _show(found)


def _describe_model_source(
    file: Path, kind: str, candidates: str | None, *, passes: bool, plan: bool
) -> dict[str, Any]:
    from rerank_engine.model import Model

    if kind == "bundle":
        from rerank_sdk.bundle import Bundle

        bundle = Bundle.read(file)
        model = bundle.model()
        found = describe_bundle(bundle)
    else:
        if kind == "onnx":
            from rerank_engine import convert

            model = convert(file, candidates=candidates)
        else:
            model = Model.read(file)
        found = {"model": describe_model(model)}
    if passes:
        found["passes"] = describe_passes(model.reports)
    if plan:
        from rerank_engine import load

        found["plan"] = load(model).explain()
    return found


def _show(found: Mapping[str, Any]) -> None:
    show_facts([("file", found["file"]), ("kind", found["kind"]), ("size", size_text(found["bytes"]))])
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
    if "passes" in found:
        show_passes(found["passes"])
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
