"""``rerank events``: logs into an event store, and events out of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import make_table, note, print_json, progress, say, show_error, show_facts, show_table

if TYPE_CHECKING:
    from rerank_sdk.exchange import ImportReport

events = typer.Typer(help="Import and export events.", no_args_is_help=True, rich_markup_mode=None)

_READ = ("jsonl", "parquet", "segment", "snowplow")
_WRITTEN = ("jsonl", "parquet")
_MAPPINGS = ("segment", "snowplow")
_PROGRESS_EVENTS = 4_096

StorePath = Annotated[Path, typer.Option("--store", dir_okay=False, help="The event store, an SQLite file.")]


def _known(value: str | None, names: tuple[str, ...]) -> str | None:
    if value is not None and value not in names:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
    return value


@events.callback()
def group() -> None:
    """Import and export events."""


@events.command("import")
def import_(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", exists=True, dir_okay=False, help="Files to read.")],
    store: StorePath,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            callback=lambda value: _known(value, _READ),
            metavar="FORMAT",
            help="jsonl, parquet, segment or snowplow; by default each file's ending decides.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A TOML file that says how records become events."),
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write what cannot be imported here, as JSON lines.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first record that cannot be imported.")] = False,
    json: JsonFlag = False,
) -> None:
    """Read logs into an event store; made if missing."""
    from dataclasses import asdict

    from rerank_sdk.exchange import EventMapping, import_events
    from rerank_sdk.exchange.files import is_same_file
    from rerank_sdk.store import EventStore

    if rejects is not None and mapping is not None and is_same_file(rejects, mapping):
        raise typer.BadParameter(f"{rejects} is the mapping: give another file", param_hint="--rejects")
    chosen = None if mapping is None else EventMapping.from_toml(mapping)
    with EventStore.open(store) as opened, progress() as report:
        done = import_events(
            opened, logs, format=format, mapping=chosen, rejects=rejects, strict=strict, progress=report
        )
    if json:
        print_json({**asdict(done), "rejected_total": done.rejected_total, "store": store, "rejects": rejects})
    else:
        _show(done, rejects)
    if done.rejected and not done.events:
        show_error(
            "no record could be imported: name the --format of the log, or say by a --mapping where the fields are"
        )
        raise typer.Exit(1)


def _show(done: ImportReport, rejects: Path | None) -> None:
    show_facts(
        [
            ("files", done.files),
            ("records", done.records),
            ("events", done.events),
            ("new in the store", done.new),
            ("there already", done.duplicates),
            ("records skipped", done.skipped_total),
            ("rejected", done.rejected_total),
        ]
    )
    for title, counts in (("Skipped", done.skipped), ("Rejected", done.rejected)):
        if counts:
            table = make_table("why", ("count", "right"), title=title)
            for name, count in counts.items():
                table.add_row(name, f"{count:,}")
            show_table(table)
    for one in done.shown:
        say(f"{one.file}, record {one.line}: {one.reason}: {one.detail}")
    if done.rejected:
        note(f"the rejected records are in {rejects}" if rejects else "--rejects FILE keeps the rejected records")


@events.command()
def export(
    store: Annotated[Path, typer.Option("--store", exists=True, dir_okay=False, help="The event store.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file to write; .gz packs JSON lines.")],
    user: Annotated[
        list[str] | None, typer.Option(help="Only this user's events; may be repeated. By default everybody's.")
    ] = None,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            callback=lambda value: _known(value, _WRITTEN),
            metavar="FORMAT",
            help="jsonl or parquet; by default the file's ending decides.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the events of a store to a file."""
    from collections.abc import Iterator

    from rerank_features import Event
    from rerank_sdk.exchange import write_events
    from rerank_sdk.exchange.files import is_of_store
    from rerank_sdk.store import EventStore

    if is_of_store(out, store):
        raise typer.BadParameter(f"{out} is a file of the store: give another file", param_hint="--out")
    with EventStore.open(store, read_only_ok=True) as opened, progress() as report:
        users = list(dict.fromkeys(user)) if user else [None]
        total = sum(opened.count(one) for one in users)

        def stored() -> Iterator[Event]:
            count = 0
            for one in users:
                for event in opened.read(one):
                    yield event
                    count += 1
                    if count % _PROGRESS_EVENTS == 0:
                        report(count, total, str(out))

        count = write_events(stored(), out, format=format)
    if json:
        print_json({"events": count, "out": out, "size_bytes": out.stat().st_size, "users": user or None})
    else:
        say(f"{count:,} events written to {out}")


@events.command()
def mapping(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", callback=lambda value: _known(value, _MAPPINGS), help="segment or snowplow."),
    ],
    json: JsonFlag = False,
) -> None:
    """Print a built-in mapping, to copy and change."""
    from rerank_sdk.exchange import EventMapping, builtin_text

    if json:
        print_json({"name": name, "toml": builtin_text(name), "schema": EventMapping.json_schema()})
    else:
        sys.stdout.write(builtin_text(name))
