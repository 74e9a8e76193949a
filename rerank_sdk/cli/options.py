"""Options that several commands share, and checks of their values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]

BundlePath = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        exists=True,
        dir_okay=False,
        help="Model and features to use, a .rrb file; the built-in DIN bundle when left out.",
    ),
]


def picture_format(path: Path | None) -> Path | None:
    """Check the name of a picture, before the work that it shows."""
    if path is not None and path.suffix.lower() not in (".png", ".svg"):
        raise typer.BadParameter(f"{str(path)!r} ends neither with .png nor with .svg")
    return path


def positive(value: float | None) -> float | None:
    """Check an option's number: finite and above zero."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value} is not a finite number above 0")
    return value


def not_negative(value: float) -> float:
    """Check an option's number: finite and not below zero."""
    if not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter(f"{value} is not a finite number from 0")
    return value


def share(value: float) -> float:
    """Check an option's number: from 0 to below 1."""
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{value} is not a number from 0 to below 1")
    return value
