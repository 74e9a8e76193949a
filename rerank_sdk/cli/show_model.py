"""Models, passes and plans as tables, for the commands that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank_sdk.cli.output import make_table, show_facts, show_table, size_text


def show_model(model: Mapping[str, Any]) -> None:
    """Print what :func:`~rerank_sdk.cli.describe.describe_model` found."""
    facts: list[tuple[str, Any]] = [("model", model["name"]), ("content hash", model["content_hash"])]
    facts += [("input", _value_line(value)) for value in model["inputs"]]
    facts += [("output", _value_line(value)) for value in model["outputs"]]
    facts += [
        ("parameters", f"{model['parameters']:,} ({size_text(model['constant_bytes'])})"),
        *((name, text) for name, text in model["metadata"].items()),
    ]
    show_facts(facts)
    table = make_table("operator", ("nodes", "right"), ("parameters", "right"), ("bytes", "right"))
    for row in model["operators"]:
        table.add_row(row["operator"], f"{row['nodes']:,}", f"{row['parameters']:,}", f"{row['bytes']:,}")
    show_table(table)


def show_passes(passes: Sequence[Mapping[str, Any]]) -> None:
    """Print what each pass changed."""
    table = make_table("pass", ("nodes", "right"), "removed", "added", title="passes")
    for one in passes:
        nodes = f"{one['nodes_before']} > {one['nodes_after']}"
        table.add_row(one["name"], nodes, _counted(one["removed"]), _counted(one["added"]))
    show_table(table)


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print what an engine, or the stored image of one, says about its plan."""
    target = plan.get("target") or {}
    facts: list[tuple[str, Any]] = [(name, plan[name]) for name in ("backend", "reason", "image") if name in plan]
    if target:
        facts.append(("target", f"{target['cpu']}, {target['lanes']} float32 lanes, {target['triple']}"))
    if "block" in plan:
        facts.append(("block", f"{plan['block']} candidates at a time"))
    facts += [
        (label, size_text(plan[name]))
        for label, name in (("machine code", "code_bytes"), ("arena", "arena_bytes"), ("weights", "weight_bytes"))
        if name in plan
    ]
    if "compile_ms" in plan:
        facts.append(("compiled in", f"{plan['compile_ms']:,} ms"))
    search = plan.get("search")
    if search:
        facts.append(("kernel search", search["reason"]))
        facts += [
            (f"product {product}", f"tiles {one['chosen']} for {one['default']}")
            for product, one in search.get("tilings", {}).items()
            if search["is_used"]
        ]
    show_facts(facts)
    table = make_table(("step", "right"), "runs", "operators", "writes")
    for number, step in enumerate(plan.get("steps", ())):
        table.add_row(str(number), step["runs"], step["label"], step["writes"])
    if table.row_count:
        show_table(table)


def _value_line(value: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, value["shape"]))
    return f"{value['name']}: {value['dtype']} ({shape}{',' if len(value['shape']) == 1 else ''})"


def _counted(operators: Sequence[str]) -> str:
    names = dict.fromkeys(operators)
    return ", ".join(f"{operators.count(name)} {name}" for name in names) or "-"
