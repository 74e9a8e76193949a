"""What the tests of the documentation share: tables of pages, and helpers in files of their own."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"

Table = Callable[[str, str], list[list[str]]]


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [cell.strip().replace("\\|", "|").replace("`", "") for cell in cells]


def _without_code(text: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```[ ]*$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def table() -> Table:
    """Reads the first table of a section of a page, without its head: rows of cells as plain text."""

    def read(page: str, heading: str) -> list[list[str]]:
        text = _without_code((DOCS / page).read_text(encoding="utf-8"))
        parts = re.split(rf"^#+ +{re.escape(heading)} *$", text, flags=re.MULTILINE)
        assert len(parts) == 2, f"{page} has {len(parts) - 1} sections called {heading!r}"
        section = re.split(r"^#+ ", parts[1], maxsplit=1, flags=re.MULTILINE)[0]
        found = re.search(r"(?:^\|.*\n)+", section + "\n", flags=re.MULTILINE)
        assert found, f"{page}: section {heading!r} has no table"
        return [_cells(line) for line in found[0].splitlines()[2:]]

    return read


@pytest.fixture(scope="session")
def onnx_attributes() -> ModuleType:
    """The file ``onnx_attributes.py`` beside this one."""
    path = Path(__file__).with_name("onnx_attributes.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Data classes look their module up there.
    spec.loader.exec_module(module)
    return module
