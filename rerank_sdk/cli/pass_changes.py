"""What the passes of a conversion changed, node by node, for ``rerank inspect --passes``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rerank_sdk.cli.describe import describe_passes
from rerank_sdk.cli.output import make_table, show_table
from rerank_sdk.cli.show_model import show_passes

if TYPE_CHECKING:
    from rerank_engine.passes import PassReport

_MOST_NAMES = 6
"""Names in one line of the table; ``--json`` has all."""


def describe_changes(reports: Iterable[PassReport]) -> list[dict[str, Any]]:
    """Counts and operators as :func:`~rerank_sdk.cli.describe.describe_passes`, the round, and the nodes by name."""
    listed = list(reports)
    return [
        {
            **counts,
            "round": report.round,
            "removed_nodes": list(report.removed_nodes),
            "added_nodes": list(report.added_nodes),
        }
        for counts, report in zip(describe_passes(listed), listed, strict=True)
    ]


def show_changes(passes: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each pass, and one for each operator that it removed or added."""
    titled = [{**one, "name": _title(one)} for one in passes]
    show_passes(titled)
    table = make_table("pass", "change", "operator", "nodes", title="changed nodes")
    for one in titled:
        for change in ("removed", "added"):
            for operator, names in _by_operator(one[change], one[f"{change}_nodes"]):
                table.add_row(one["name"], change, operator, _listed(names))
    if table.row_count:
        show_table(table)


def _title(one: Mapping[str, Any]) -> str:
    return one["name"] if one["round"] == 1 else f"{one['name']}, round {one['round']}"


def _by_operator(operators: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    pairs = list(zip(operators, names, strict=True))
    for operator in dict.fromkeys(operators):
        yield operator, [name for own, name in pairs if own == operator]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f", … {more} more" if more > 0 else "")
