"""Where words go: results to stdout, as text or as JSON; notes, progress and errors to stderr.

Escape codes are written to a terminal only, and never when ``NO_COLOR`` is set.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Progress = Callable[[int, int, str], None]
Justify = Literal["left", "right"]

_PLAIN_WIDTH = 80


def plain(value: Any) -> Any:
    """Turn a value into what JSON knows; numbers that are not finite become None.

    Examples
    --------
    >>> plain({"loss": float("nan"), "shape": (2, 3)})
    {'loss': None, 'shape': [2, 3]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars, without importing it
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, PurePath) else value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Write a value as JSON, in ASCII, so that no console can spoil it."""
    return json.dumps(plain(value), allow_nan=False, indent=indent)


def print_json(value: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def console(*, stderr: bool = False) -> Console:
    """A console for stdout or stderr: texts are taken as they are, without markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    escapes = _escapes(stderr=stderr)
    return Console(
        file=stream,
        force_terminal=escapes,
        color_system="auto" if escapes else None,
        width=None if stream.isatty() else _PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _escapes(*, stderr: bool) -> bool:
    stream = sys.stderr if stderr else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """Tell something on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show_error(text: str) -> None:
    """Tell on stderr what is wrong, in one line."""
    line = "error: " + " ".join(text.split())
    console(stderr=True).print(line, style="red", soft_wrap=True)


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on stderr while a command works, fed by calls of (done, total, text); nothing without a terminal."""
    if not _escapes(stderr=True):
        yield _silent
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console(stderr=True), transient=True
    ) as bars:
        task = bars.add_task("preparing", total=None)
        yield lambda done, total, text: bars.update(task, completed=done, total=total, description=text)


def _silent(*_: object) -> None:
    """Progress that nobody sees."""


def make_table(*columns: str | tuple[str, Justify], title: str | None = None) -> Table:
    """A table with a line under its header; a column is a heading, alone or with its alignment.

    Examples
    --------
    >>> len(make_table("policy", ("NDCG@10", "right")).columns)
    2
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        heading, justify = column if isinstance(column, tuple) else (column, "left")
        table.add_column(heading, justify=justify, overflow="fold")
    return table


def show_table(table: Table) -> None:
    """Print a table on stdout, between empty lines."""
    out = console()
    if out.color_system is not None:
        out.print("", table, "")
        return
    # What is no terminal gets no spaces at the ends of lines.
    with out.capture() as captured:
        out.print(table)
    text = "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
    sys.stdout.write(f"\n{text}\n")


def show_facts(facts: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> None:
    """Print names and values on stdout, one pair a line; long values wrap at words, paths stay whole."""
    pairs = list(facts.items()) if isinstance(facts, Mapping) else list(facts)
    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        show_item(name.ljust(width), value_text(value), style="cyan")


def show_item(head: str, text: str, *, style: str) -> None:
    """Print a styled head and a text that wraps beside it."""
    import textwrap

    from rich.text import Text

    out = console()
    room = max(20, out.width - len(head))
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    body = ("\n" + " " * len(head)).join(lines)
    out.print(Text.assemble((head, style), body), soft_wrap=True)


def say(text: str = "", style: str | None = None) -> None:
    """Print a line of text on stdout, wrapped at words."""
    import textwrap

    out = console()
    lines = textwrap.wrap(text, out.width, break_long_words=False, break_on_hyphens=False)
    out.print("\n".join(lines), style=style, soft_wrap=True)


def value_text(value: Any) -> str:
    """Write a value for people.

    Examples
    --------
    >>> value_text(1234567), value_text(0.34567), value_text(["a", "b"]), value_text(None), value_text([])
    ('1,234,567', '0.3457', 'a, b', '-', '-')
    """
    value = plain(value)
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(value_text(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {value_text(one)}" for name, one in value.items())
    return str(value)


def size_text(size_bytes: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> size_text(999), size_text(21_000), size_text(3_500_000)
    ('999 B', '21.0 kB', '3.5 MB')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"
