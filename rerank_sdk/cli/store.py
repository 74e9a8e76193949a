"""``rerank store``: check, copy, shrink and describe an event store."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import print_json, say, show_facts, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rerank_sdk.store import EventStore

store = typer.Typer(help="Look after an event store.", no_args_is_help=True, rich_markup_mode=None)

StorePath = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The store's file, such as events.db.")]


@store.callback()
def group() -> None:
    """Look after an event store."""


@contextmanager
def _opened(path: Path, *, read_only_ok: bool = False) -> Iterator[EventStore]:
    """The store; a damaged file is refused and left as it is, because the app is to restore it."""
    from rerank_engine.errors import StoreError
    from rerank_sdk.store import EventStore

    if not path.stat().st_size:  # opening would make a store of it
        raise StoreError(f"event store {path}: expected a store, got an empty file: give the file that the app made")
    with EventStore.open(path, on_damage="refuse", read_only_ok=read_only_ok) as opened:
        yield opened


def _positive_number(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value} is not a whole number from 1")
    return value


@store.command()
def verify(path: StorePath, json: JsonFlag = False) -> None:
    """Check every page and checksum of a store."""
    with _opened(path, read_only_ok=True) as opened:
        found = opened.verify()
    if json:
        print_json({"sound": found.sound, **found._asdict()})
    else:
        facts: dict[str, Any] = {
            "events": found.events,
            "damaged events": found.damaged_events,
            "damaged states": found.damaged_states,
        }
        show_facts(facts)
        for problem in found.problems:
            say(problem)
        say("sound" if found.sound else "damaged: the next opening restores what can be read, and the backup")
    if not found.sound:
        raise typer.Exit(1)


@store.command()
def backup(path: StorePath, json: JsonFlag = False) -> None:
    """Take a checked copy beside the store."""
    with _opened(path) as opened:
        taken = opened.backup(now_ms=_clock_ms())
    result = {"backup": taken, "bytes": 0 if taken is None else taken.stat().st_size}
    if json:
        print_json(result)
    else:
        show_facts({"backup": taken, "size": size_text(int(str(result["bytes"])))})


@store.command()
def prune(
    path: StorePath,
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", metavar="N", help="Bytes of the pages in use.", callback=_positive_number),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", metavar="N", help="Events.", callback=_positive_number)
    ] = None,
    max_age_days: Annotated[
        int | None, typer.Option("--max-age-days", metavar="N", help="Age of an event.", callback=_positive_number)
    ] = None,
    now_ms: Annotated[
        int | None,
        typer.Option(
            "--now-ms", metavar="MS", help="The time that ages count from, in milliseconds since 1970, UTC; now."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Erase the oldest events above the limits."""
    from rerank_sdk.store import StoreLimits

    if max_bytes is None and max_rows is None and max_age_days is None:
        raise typer.BadParameter("give at least one of --max-bytes, --max-rows and --max-age-days")
    limits = StoreLimits(max_bytes=max_bytes, max_rows=max_rows, max_age_days=max_age_days)
    with _opened(path) as opened:
        pruned = opened.prune(_clock_ms() if now_ms is None else now_ms, limits=limits)
    if json:
        print_json(pruned._asdict())
    else:
        show_facts(
            {
                "events erased": pruned.rows,
                "users concerned": pruned.users,
                "freed": size_text(pruned.bytes_freed),
                "events too many": pruned.over_rows,
                "bytes too many": pruned.over_bytes,
            }
        )


@store.command()
def stats(path: StorePath, json: JsonFlag = False) -> None:
    """Say how much a store holds."""
    with _opened(path, read_only_ok=True) as opened:
        result = {
            "schema_version": opened.health().schema_version,
            "writable": opened.health().writable,
            "users": len(opened.users()),
            "events": opened.count(),
            "items": len(opened.load_items()),
            **{f"{name}_bytes": _size(path, ending) for name, ending in _FILES},
        }
    if json:
        print_json(result)
    else:
        show_facts({name.replace("_", " "): value for name, value in result.items()})


_FILES = (("file", ""), ("log", "-wal"), ("backup", ".backup"))


def _size(path: Path, ending: str) -> int:
    file = path.with_name(path.name + ending)
    return file.stat().st_size if file.exists() else 0


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
