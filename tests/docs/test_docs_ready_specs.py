"""The page of the ready specs names every column, id, array and sequence of each spec, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rerank_features import FeaturePipeline, FeatureSpec
from rerank_features.ready import READY_SPECS, ready_spec
from rerank_features.spec_check import used_kinds

PAGE = (Path(__file__).parent.parent.parent / "docs" / "ready-specs.md").read_text(encoding="utf-8")
MAPPED = tuple(name for name in READY_SPECS if name != "feed")


def section(name: str) -> str:
    return re.split(r"^## ", re.split(rf"^## {name}$", PAGE, flags=re.MULTILINE)[1], flags=re.MULTILINE)[0]


def tables(name: str) -> dict[str, list[list[str]]]:
    """Rows of each table of a section, by the table's head."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", section(name), flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found[" | ".join(rows[0])] = rows[2:]
    return found


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def names_of(spec: FeatureSpec) -> list[str]:
    """Everything that a spec makes, as the page writes it."""
    arrays = FeaturePipeline(spec).array_shapes()
    hidden = [f"sequences.{sequence.name}" for sequence in spec.sequences if not sequence.emit]
    return [
        *(feature.name for feature in spec.dense),
        *(f"ids.{feature.name}" for feature in spec.ids),
        *(name for name in arrays if name not in ("dense", "ids", "embedding")),
        *hidden,
    ]


@pytest.mark.parametrize("name", MAPPED)
def test_the_table_and_the_spec_have_the_same_names_each_once(name: str) -> None:
    rows = tables(name)["theirs | what it computes | ours"]
    written = [entry for _, _, ours in rows for entry in code(ours)]
    assert sorted(written) == sorted(names_of(ready_spec(name)))
    assert all(theirs and computes and ours for theirs, computes, ours in rows)


@pytest.mark.parametrize("name", ["edgerec", "kuaishou"])
def test_the_table_of_events_has_every_kind_of_the_spec(name: str) -> None:
    rows = tables(name)["events | meaning | value"]
    assert sorted(kind for row in rows for kind in code(row[0])) == sorted(used_kinds(ready_spec(name)))


def test_every_ready_spec_but_the_plain_one_has_a_section_with_its_source() -> None:
    assert re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE) == list(MAPPED)
    for name in MAPPED:
        assert re.search(r"\]\(https://", section(name))
        assert "What cannot be said" in section(name)


@pytest.mark.parametrize("name", MAPPED)
def test_the_file_names_every_kind_of_event_that_it_uses(name: str) -> None:
    from rerank_features.ready import ready_spec_path

    head = re.split(r"^name = ", ready_spec_path(name).read_text(encoding="utf-8"), flags=re.MULTILINE)[0]
    assert sorted(re.findall(r'"([a-z_]+)"', head)) == sorted(used_kinds(ready_spec(name)))
