"""Plain values as TOML text, in a fixed order; the standard library only reads TOML."""

from __future__ import annotations

import json
from typing import Any


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
