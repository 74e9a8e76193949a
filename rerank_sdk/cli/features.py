"""``rerank features``: check a feature spec, print its schema, and show where a value comes from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank_sdk.cli.options import BundlePath, JsonFlag
from rerank_sdk.cli.output import make_table, print_json, say, show_facts, show_table, value_text
from rerank_sdk.cli.sources import load_bundle, load_history

if TYPE_CHECKING:
    from rerank_features import FeatureSpec
    from rerank_features.explain import ValueExplanation

features = typer.Typer(
    name="features", help="Check a feature spec, print its schema, explain a value.", no_args_is_help=True
)

SpecPath = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A feature spec, .toml.")]

_SHOWN_EVENTS = 20


@features.command()
def check(spec: SpecPath, json: JsonFlag = False) -> None:
    """Check a spec, and list what it emits."""
    loaded = _read_spec(spec)
    from rerank_features import FeaturePipeline

    shapes = FeaturePipeline(loaded).array_shapes()
    facts = {
        "name": loaded.name,
        "hash": loaded.content_hash(),
        "columns": [feature.name for feature in loaded.dense],
        "arrays": shapes,
    }
    if json:
        print_json(facts)
        return
    show_facts({"name": facts["name"], "hash": facts["hash"], "columns": facts["columns"]})
    table = make_table("array", "shape")
    for name, shape in shapes.items():
        table.add_row(name, " × ".join(map(str, shape)))
    show_table(table)


@features.command()
def schema(json: JsonFlag = False) -> None:
    """Show what a spec may hold; with --json as a JSON schema, for editors."""
    from rerank_features import FeatureSpec

    found = FeatureSpec.model_json_schema()
    if json:
        print_json(found)
        return
    table = make_table("part", "options")
    for name, part in [(found["title"], found), *found["$defs"].items()]:
        table.add_row(name, ", ".join(part["properties"]))
    show_table(table)


@features.command()
def explain(
    column: Annotated[str, typer.Argument(help="Name of a dense feature.")],
    item: Annotated[str, typer.Argument(help="Id of a candidate of the request.")],
    request: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The request as JSON, as `Request.from_json` reads it.")
    ],
    state: Annotated[Path, typer.Option(exists=True, help="State folder of the app, or its events.db.")],
    spec: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A feature spec, .toml, instead of a bundle's.")
    ] = None,
    bundle: BundlePath = None,
    json: JsonFlag = False,
) -> None:
    """Show which events a value is made of, by leaving each of them out."""
    from rerank_features import FeatureSpec, Request
    from rerank_features.explain import explain_value

    if spec is not None and bundle is not None:
        raise typer.BadParameter("give --spec or --bundle, not both")
    loaded = FeatureSpec.from_toml(load_bundle(bundle).spec_text) if spec is None else _read_spec(spec)
    asked = Request.from_json(request.read_bytes())
    items, events = load_history(state)
    found = explain_value(loaded, items=items, events=events, request=asked, column=column, item=item)
    if json:
        print_json(_as_json(found))
    else:
        _show(found)


def _read_spec(path: Path) -> FeatureSpec:
    from rerank_features import FeatureSpec

    return FeatureSpec.from_toml(path)


def _as_json(found: ValueExplanation) -> dict[str, Any]:
    return {
        "column": found.column,
        "item": found.item,
        "definition": found.definition,
        "value": found.value,
        "raw": found.raw,
        "events": found.counted,
        "older_events": found.older,
        "effects": [
            {
                "time_ms": effect.event.time_ms,
                "user": effect.event.user,
                "item": effect.event.item,
                "kind": effect.event.kind,
                "event_value": effect.event.value,
                "value_without": effect.without,
            }
            for effect in found.effects
        ],
    }


def _show(found: ValueExplanation) -> None:
    show_facts(
        {
            "feature": found.column,
            "candidate": found.item,
            "value": found.value,
            "before its transform": found.raw,
            "events looked at": found.counted,
            "older events, counted only": found.older,
        }
    )
    say()
    for line in found.definition.splitlines():
        say("    " + line)
    if not found.effects:
        say()
        say("No single event changes it.")
        return
    table = make_table("time", "event", "item", ("value", "right"), ("without it", "right"))
    for effect in found.effects[-_SHOWN_EVENTS:]:
        event = effect.event
        moment = datetime.fromtimestamp(event.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(moment, event.kind, event.item, value_text(event.value), value_text(effect.without))
    show_table(table)
    hidden = len(found.effects) - _SHOWN_EVENTS
    if hidden > 0:
        say(f"{hidden:,} earlier events change it too; --json lists all.")
