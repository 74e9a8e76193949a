"""Options that several commands share, and checks of their values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def named_integers(texts: Sequence[str] | None, option: str) -> dict[str, int]:
    """Read ``NAME=NUMBER`` options.

    >>> named_integers(["N=500"], "--maximum")
    {'N': 500}
    """
    numbers: dict[str, int] = {}
    for name, text in _pairs(texts, option):
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise typer.BadParameter(f"{option} {name}={text}: expected a whole number from 0")
        numbers[name] = int(text)
    return numbers


def named_texts(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read ``NAME=TEXT`` options.

    >>> named_texts(["history=T"], "--dimension")
    {'history': 'T'}
    """
    return dict(_pairs(texts, option))


def named_arrays(texts: Sequence[str] | None, option: str) -> dict[str, NDArray[Any]]:
    """Read ``NAME=JSON`` options: a number, a truth value, or (nested) lists of them; whole numbers become int64.

    >>> named_arrays(["k=10", "axes=[0, 1]"], "--constant")
    {'k': array(10), 'axes': array([0, 1])}
    """
    import numpy as np

    arrays = {}
    for name, text in _pairs(texts, option):
        try:
            array = np.asarray(json.loads(text))
        except ValueError as error:
            raise typer.BadParameter(
                f"{option} {name}={text}: expected a number or lists of numbers: {error}"
            ) from None
        if array.dtype.kind not in "bif":
            raise typer.BadParameter(f"{option} {name}={text}: expected a number or lists of numbers")
        arrays[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    return arrays


def _pairs(texts: Sequence[str] | None, option: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in texts or ():
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise typer.BadParameter(f"{option} {text}: expected NAME=VALUE")
        if name in dict(pairs):
            raise typer.BadParameter(f"{option} {text}: {name} is given twice")
        pairs.append((name, value))
    return pairs
