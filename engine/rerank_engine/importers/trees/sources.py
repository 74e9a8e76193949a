"""Bytes behind a source, JSON out of them, and typed access to what others wrote into it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine.errors import ConversionError
from rerank_engine.importers.trees.model import Array


def read_bytes(source: str | os.PathLike[str] | bytes) -> bytes:
    """The bytes of a file, or the bytes themselves.

    Raises
    ------
    ConversionError
        The file cannot be read.
    """
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:
        raise ConversionError(f"cannot read {os.fspath(source)!r}: {error}") from error


def parse_json(data: bytes, what: str) -> Any:
    """Parse JSON.

    Raises
    ------
    ConversionError
        It is none, or nested too deeply.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{what} is no readable JSON: {error}") from error


class Fields:
    """A JSON object that somebody else wrote: every look says what it expects.

    Parameters
    ----------
    value
        What should be an object.
    place
        Its path in the document, for messages.
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise ConversionError(f"{place} is {type(value).__name__}, expected an object; the model is damaged")
        self.value = value
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self.value

    def bad(self, name: str, expected: str) -> ConversionError:
        """The error for an entry that is not what it should be."""
        found = repr(self.value[name]) if name in self.value else "missing"
        found = found if len(found) <= 60 else f"{found[:57]}..."
        return ConversionError(f"{self.place}.{name} is {found}, expected {expected}; the model is damaged")

    def object(self, name: str) -> Fields:
        """An object."""
        if not isinstance(self.value.get(name), Mapping):
            raise self.bad(name, "an object")
        return Fields(self.value[name], f"{self.place}.{name}")

    def list(self, name: str) -> list[Any]:
        """A list."""
        found = self.value.get(name)
        if not isinstance(found, list):
            raise self.bad(name, "a list")
        return found

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        found = self.value.get(name, default)
        if not isinstance(found, str):
            raise self.bad(name, "a text")
        return found

    def integer(self, name: str, default: int | None = None, low: int = 0, high: int = 2**31 - 1) -> int:
        """An integer in a range; some writers put it into a text."""
        found = self.value.get(name, default)
        try:
            number = int(found) if isinstance(found, str) else found
        except ValueError:
            number = None
        if type(number) is not int or not low <= number <= high:
            raise self.bad(name, f"an integer from {low} to {high}")
        return number

    def number(self, name: str, default: float | None = None) -> float:
        """A number, not NaN."""
        found = self.value.get(name, default)
        try:
            number = float(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else None
        except (ValueError, OverflowError):
            number = None
        if number is None or number != number:
            raise self.bad(name, "a number")
        return number

    def integers(self, name: str, count: int | None = None) -> Array:
        """A list of integers as int64."""
        found = as_array(self.value.get(name))
        if found is None or not _counts(found, count):
            raise self.bad(name, f"a list of {'' if count is None else f'{count} '}integers")
        whole = found.astype(np.int64) if found.dtype.kind in "iub" else _whole(found)
        if whole is None:
            raise self.bad(name, "a list of integers")
        return whole

    def numbers(self, name: str, count: int | None = None) -> Array:
        """A list of numbers as float64."""
        found = as_array(self.value.get(name))
        if found is None or not _counts(found, count):
            raise self.bad(name, f"a list of {'' if count is None else f'{count} '}numbers")
        return found.astype(np.float64)

    def singles(self, name: str, count: int | None = None) -> Array:
        """A list of numbers as float32; what is beyond it is infinite."""
        with np.errstate(over="ignore"):
            return self.numbers(name, count).astype(np.float32)


def as_array(found: Any) -> Array | None:
    """A list of numbers as an array, or None."""
    if isinstance(found, np.ndarray):
        return found if found.ndim == 1 and found.dtype.kind in "iufb" else None
    if not isinstance(found, Sequence) or isinstance(found, str):
        return None
    if not all(isinstance(entry, int | float) for entry in found):
        return None
    try:
        return np.array(found, dtype=np.int64 if all(isinstance(entry, int) for entry in found) else np.float64)
    except OverflowError:
        return None


def _counts(found: Array, count: int | None) -> bool:
    return count is None or len(found) == count


def _whole(found: Array) -> Array | None:
    fits = np.isfinite(found) & (np.abs(found) < 2.0**53)
    if not fits.all() or (found != np.floor(found)).any():
        return None
    return found.astype(np.int64)
