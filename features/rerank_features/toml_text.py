"""Specs as TOML: read from a path or a text, and written in a fixed order; the standard library only reads."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from rerank_engine.errors import SpecError


def read_toml(source: str | Path, what: str) -> dict[str, Any]:
    """Read a path, or the text itself: a string with an equals sign or a line break is text.

    Parameters
    ----------
    source
        Path or text.
    what
        How errors call what is read.

    Raises
    ------
    SpecError
        The file cannot be read, or is no TOML.

    Examples
    --------
    >>> read_toml('name = "feed"', "the feature spec")
    {'name': 'feed'}
    """
    if not isinstance(source, str | Path):
        raise SpecError(f"expected TOML text or a path, got {type(source).__name__}; give a str or a Path")
    text = source if isinstance(source, str) else ""
    where = "the given text"
    if isinstance(source, Path) or not any(sign in text for sign in "=\n"):
        where = str(source)
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise SpecError(f"cannot read {what} {where}: {error}; give a TOML file in UTF-8") from None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{what} in {where} is no TOML: {error}; correct that line") from None


def toml_text(data: dict[str, Any]) -> str:
    """Tables of plain values: scalars and arrays first, then tables, then arrays of tables."""
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in data.items() if not _is_table(value)]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += ["", f"[{_toml_key(key)}]"]
            lines += [f"{_toml_key(name)} = {_toml_value(part)}" for name, part in value.items()]
        elif _is_table(value):
            for table in value:
                lines += ["", f"[[{_toml_key(key)}]]"]
                lines += [f"{_toml_key(name)} = {_toml_value(part)}" for name, part in table.items()]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, tuple) and bool(value) and isinstance(value[0], dict))


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(part) for part in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's; JSON leaves DEL as it is, TOML does not allow it
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
