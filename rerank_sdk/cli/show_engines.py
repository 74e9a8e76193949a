"""The engine's benchmark for people: a table a model, then starts, passes and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank_sdk.cli.output import Justify, make_table, show_facts, show_item, show_table


def show_engines(measured: Mapping[str, Any]) -> None:
    """Show everything that was measured."""
    for name, entries in measured["models"].items():
        _show_model(name, entries)
    if measured["start"]:
        _show_starts(measured["start"])
    if any(measured["passes"].values()):
        _show_passes(measured["passes"])
    for what, reason in measured["failures"].items():
        show_item(f"{what}: ", reason, style="red")
    show_facts({"empty call, us": measured["noop_us"], "peak of one core, GFLOP/s": measured["peak_gflops"]})


def _show_model(name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """One line a size: our times, then the peers from the best one on."""
    has_cached = any("cached_us" in entry for entry in entries.values())
    cached: list[tuple[str, Justify]] = [("cached us", "right"), ("ratio", "right")] if has_cached else []
    table = make_table(
        ("N", "right"),
        ("ours p50 us", "right"),
        ("p99", "right"),
        ("best peer", "left"),
        ("p50 us", "right"),
        ("ratio", "right"),
        ("of peak", "right"),
        *cached,
        title=name,
    )
    for size, entry in entries.items():
        share = entry["share_of_peak"]
        table.add_row(
            size,
            _number(entry["ours_us"]),
            _number(entry["ours_p99_us"]),
            entry["best_peer"] or "-",
            _number(entry["best_peer_us"]),
            _ratio(entry["ratio"]),
            "-" if share is None else f"{share:.0%}",
            *((_number(entry.get("cached_us")), _ratio(entry.get("cached_ratio"))) if has_cached else ()),
        )
    show_table(table)
    peers = list(dict.fromkeys(peer for entry in entries.values() for peer in entry["peers"]))
    if not peers:
        return
    others = make_table("p50 us at N =", *[(size, "right") for size in entries])
    for peer in peers:
        figures = [entry["peers"].get(peer) for entry in entries.values()]
        others.add_row(peer, *[_figure(one) for one in figures])
    show_table(others)


def _figure(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return "wrong" if one["wrong"] else _number(one["p50_us"])


def _show_starts(starts: Mapping[str, Mapping[str, Any]]) -> None:
    """Fresh processes: ours beside the quickest peer, and the smallest one."""
    table = make_table(
        "start",
        ("ours ms", "right"),
        ("best peer", "left"),
        ("ms", "right"),
        ("ours MB", "right"),
        ("smallest peer", "left"),
        ("MB", "right"),
        ("first launch ms", "right"),
        ("search ms", "right"),
    )
    for name, entry in starts.items():
        engines = entry["engines"]
        ours, best, smallest = engines.get("ours", {}), entry["best_peer"], entry["smallest_peer"]
        table.add_row(
            name,
            _number(ours.get("total_ms")),
            best or "-",
            _number(engines[best]["total_ms"] if best else None),
            _number(ours.get("rss_mb")),
            smallest or "-",
            _number(engines[smallest]["rss_mb"] if smallest else None),
            _number(entry["first_launch_ms"]),
            _number(entry["search_ms"]),
        )
    show_table(table)


def _show_passes(passes: Mapping[str, Mapping[str, float]]) -> None:
    """How many times longer a call takes without each pass."""
    names = sorted({name for gains in passes.values() for name in gains})
    table = make_table("gain of a pass", *[(model, "right") for model in passes])
    for name in names:
        table.add_row(name, *[_ratio(gains.get(name)) for gains in passes.values()])
    show_table(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
