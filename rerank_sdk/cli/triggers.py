"""``rerank triggers``: what trigger rules say, and when they would have fired."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerank_sdk.cli.options import JsonFlag
from rerank_sdk.cli.output import make_table, note, print_json, say, show_facts, show_table, value_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rerank_features.triggers import TriggerRule, TriggerSpec, TriggerStep
    from rerank_sdk.cli.trigger_replay import TriggerReplay

triggers = typer.Typer(help="Look at trigger rules and try them on a log.", no_args_is_help=True, rich_markup_mode=None)

RulesFile = Annotated[
    Path, typer.Argument(metavar="RULES", exists=True, dir_okay=False, help="Trigger rules, a TOML file.")
]


def _file_or_stdin(path: Path) -> Path:
    if str(path) != "-" and not path.is_file():
        raise typer.BadParameter(f"{str(path)!r} is no file; give one, or - for stdin")
    return path


@triggers.callback()
def group() -> None:
    """Look at trigger rules and try them on a log."""


@triggers.command()
def check(file: RulesFile, json: JsonFlag = False) -> None:
    """Check trigger rules and show what they say."""
    from rerank_features.triggers import TriggerSpec

    spec = TriggerSpec.from_toml(file)
    doubts = list(_doubts(spec))
    if json:
        rules = [rule.model_dump(mode="json") for rule in spec.rules]
        found = spec.model_dump(mode="json", exclude={"rules"})
        print_json({**found, "content_hash": spec.content_hash(), "rules": rules, "doubts": doubts})
        return
    show_facts(
        [
            ("triggers", spec.name),
            ("hash", spec.content_hash()[:12]),
            ("rules", len(spec.rules)),
            ("session ends after", f"{spec.session_gap_s:g} s"),
            ("late until", f"{spec.max_late_s:g} s"),
            ("users kept", spec.max_users),
        ]
    )
    table = make_table("rule", "action", "fires after", "scope", "limits")
    for rule in spec.rules:
        table.add_row(rule.name, rule.action, pattern_text(rule), rule.scope, limits_text(rule))
    show_table(table)
    for doubt in doubts:
        note(f"note: {doubt}")


@triggers.command()
def replay(
    rules: RulesFile,
    events: Annotated[
        Path,
        typer.Argument(
            metavar="EVENTS",
            callback=_file_or_stdin,
            help="Events in the order of arrival, one JSON object a line; - reads stdin.",
        ),
    ],
    limit: Annotated[int, typer.Option(min=0, help="List at most so many firings; all are counted.")] = 50,
    json: JsonFlag = False,
) -> None:
    """Show when each trigger rule would have fired on a log of events."""
    from rerank_features.triggers import TriggerSpec
    from rerank_sdk.cli.trigger_replay import TriggerReplay

    found = TriggerReplay(TriggerSpec.from_toml(rules), limit)
    if str(events) == "-":
        found.feed(typer.get_binary_stream("stdin"), note)
    else:
        with events.open("rb") as lines:
            found.feed(lines, note)
    if json:
        print_json(found.as_dict())
    else:
        _show(found)
    if found.bad_lines:
        raise typer.Exit(1)


def pattern_text(rule: TriggerRule) -> str:
    """The pattern of a rule in one line.

    Examples
    --------
    >>> from rerank_features.triggers import dwell_over, exposures_without_click
    >>> pattern_text(exposures_without_click(5)), pattern_text(dwell_over(10.0))
    ('5 x impression without click', 'dwell (value >= 10)')
    """
    return " > ".join(_step_text(step) for step in rule.steps)


def _step_text(step: TriggerStep) -> str:
    bounds = [
        f"{name} {sign} {bound:g}"
        for name, sign, bound in (
            ("value", ">=", step.min_value),
            ("value", "<=", step.max_value),
            ("position", ">=", step.min_position),
            ("position", "<=", step.max_position),
            ("shown share", ">=", step.min_share),
        )
        if bound is not None
    ]
    return "".join(
        (
            f"{step.count} x " if step.count > 1 else "",
            " or ".join(step.kinds) or "any event",
            f" ({', '.join(bounds)})" if bounds else "",
            f" without {' or '.join(step.without)}" if step.without else "",
        )
    )


def limits_text(rule: TriggerRule) -> str:
    """What holds a rule back, in one line.

    Examples
    --------
    >>> from rerank_features.triggers import on_click, scroll_past
    >>> limits_text(on_click(debounce_s=3.0)), limits_text(scroll_past(20)), limits_text(on_click())
    ('debounce 3 s', 'once', '-')
    """
    limits = [
        f"within {rule.within_s:g} s" if rule.within_s is not None else "",
        "" if rule.gaps else "no gaps",
        "once" if rule.once else "",
        f"debounce {rule.debounce_s:g} s" if rule.debounce_s else "",
        f"cooldown {rule.cooldown_events} events" if rule.cooldown_events else "",
    ]
    return ", ".join(limit for limit in limits if limit) or "-"


def _doubts(spec: TriggerSpec) -> Iterator[str]:
    """What is allowed and most likely a slip."""
    from rerank_features.events import KINDS

    if not spec.rules:
        yield "there is no rule, nothing ever fires"
    patterns: dict[str, str] = {}
    for rule in spec.rules:
        first = patterns.setdefault(rule.model_dump_json(exclude={"name", "priority"}), rule.name)
        if first != rule.name:
            yield f"rules {first!r} and {rule.name!r} always fire together and ask for the same; drop one of them"
        if rule.once and rule.scope == "user":
            yield f"rule {rule.name!r}: once with the scope 'user' fires a single time for a user"
        named = dict.fromkeys(kind for step in rule.steps for kind in step.kinds + step.without)
        for kind in named:
            near = [] if kind in KINDS else difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.75)
            if near:
                yield f"rule {rule.name!r}: kind {kind!r} is none that the SDK knows; did you mean {near[0]!r}?"


def _show(found: TriggerReplay) -> None:
    """The rules with their counts, then the firings one by one."""
    show_facts([("events", found.events), ("requests", found.requests), ("bad lines", found.bad_lines)])
    table = make_table("rule", "action", ("fired", "right"), ("users", "right"), "first", "last")
    for name, count in found.rules.items():
        counts = value_text(count.fired), value_text(len(count.users))
        table.add_row(
            name, count.action, *counts, *(_time_text(ms, "seconds") for ms in (count.first_ms, count.last_ms))
        )
    show_table(table)
    if found.fired:
        firings = make_table("time (UTC)", "user", "rule", "action", "item", ("events", "right"))
        for one in found.fired:
            firings.add_row(_time_text(one.time_ms), one.user, one.rule, one.action, one.item, str(one.events))
        show_table(firings)
    if found.left_out:
        say(f"{found.left_out:,} more firings are not listed; give a higher --limit.")


def _time_text(time_ms: int | None, precision: str = "milliseconds") -> str:
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", precision).removesuffix("+00:00")
