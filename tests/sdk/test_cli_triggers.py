"""``rerank triggers``: rules shown in words, slips pointed at, and a log replayed line by line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rerank_features import Event, Item, Request, TriggerMatcher
from rerank_features.triggers import TriggerRule, TriggerSpec, TriggerStep, default_triggers
from rerank_sdk.cli import app
from rerank_sdk.cli.triggers import limits_text, pattern_text


def rerank(*words: object, lines: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["triggers", *map(str, words)], input=lines)


def event(kind: str, second: int, **more: Any) -> Event:
    return Event(**{"user": "ann", "item": f"i{second}", "kind": kind, "time_ms": second * 1000, **more})


def jsonl(*lines: Event | dict[str, Any] | bytes) -> bytes:
    texts = [
        line if isinstance(line, bytes) else line.model_dump_json().encode() if isinstance(line, Event)
        else json.dumps(line).encode()
        for line in lines
    ]  # fmt: skip
    return b"\n".join(texts) + b"\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "triggers.toml"
    path.write_text(default_triggers().to_toml(), encoding="utf-8")
    return path


# --- check ---------------------------------------------------------------------------------------------------


def test_check_gives_the_rules_back_whole(rules: Path) -> None:
    result = rerank("check", rules, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    spec = default_triggers()
    assert (found.pop("content_hash"), found.pop("doubts")) == (spec.content_hash(), [])
    assert TriggerSpec(**found) == spec


def test_check_shows_a_table_for_people(rules: Path) -> None:
    result = rerank("check", rules)
    assert result.exit_code == 0, result.stderr
    for words in ("exposures_without_click_5", "refresh", "hide or dislike", "once", default_triggers().name):
        assert words in result.stdout
    assert result.stderr == ""


def test_a_rule_that_is_wrong_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('name = "t"\n[[rules]]\nname = "r"\naction = "rerun"\nsteps = [{}]\n', encoding="utf-8")
    result = rerank("check", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: rule 'r': action: 'rerun'")
    assert "did you mean 'rerank'?" in result.stderr


def test_a_kind_that_is_nearly_one_of_ours_is_noted(tmp_path: Path) -> None:
    steps = [TriggerStep(kinds=["clik"], without=["zoomed"]), TriggerStep(kinds=["scrolled", "click"])]
    path = tmp_path / "t.toml"
    spec = TriggerSpec(name="t", rules=[TriggerRule(name="r", action="rerank", steps=steps)])
    path.write_text(spec.to_toml(), encoding="utf-8")
    doubts = json.loads(rerank("check", path, "--json").stdout)["doubts"]
    assert doubts == ["rule 'r': kind 'clik' is none that the SDK knows; did you mean 'click'?"]
    assert f"note: {doubts[0]}" in rerank("check", path).stderr


def test_rules_that_say_the_same_and_rules_that_fire_a_single_time_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    click = {"action": "rerank", "steps": [TriggerStep(kinds=["click"])]}
    rules = [
        TriggerRule(name="a", **click),
        TriggerRule(name="b", **click, priority=3),
        TriggerRule(name="c", **click, debounce_s=1.0),
        TriggerRule(name="d", **click, once=True),
        TriggerRule(name="e", **click, once=True, scope="session"),
    ]
    path.write_text(TriggerSpec(name="t", rules=rules).to_toml(), encoding="utf-8")
    assert json.loads(rerank("check", path, "--json").stdout)["doubts"] == [
        "rules 'a' and 'b' always fire together and ask for the same; drop one of them",
        "rule 'd': once with the scope 'user' fires a single time for a user",
    ]


def test_a_spec_without_rules_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('name = "t"\n', encoding="utf-8")
    assert json.loads(rerank("check", path, "--json").stdout)["doubts"] == ["there is no rule, nothing ever fires"]
    assert rerank("check", path).exit_code == 0


def test_patterns_and_limits_in_words() -> None:
    steps = [
        TriggerStep(kinds=["click", "like"], min_value=1.5, max_value=2.0),
        TriggerStep(count=3, without=["hide", "skip"], min_position=4, max_position=9, min_share=0.5),
    ]
    rule = TriggerRule(
        name="r", action="rerank", steps=steps, within_s=60.0, gaps=False, once=True, debounce_s=1.5, cooldown_events=7
    )
    assert pattern_text(rule) == (
        "click or like (value >= 1.5, value <= 2) > "
        "3 x any event (position >= 4, position <= 9, shown share >= 0.5) without hide or skip"
    )
    assert limits_text(rule) == "within 60 s, no gaps, once, debounce 1.5 s, cooldown 7 events"


# --- replay --------------------------------------------------------------------------------------------------


def test_replay_fires_what_the_matcher_fires(rules: Path, tmp_path: Path) -> None:
    kinds = ["impression"] * 12 + ["click", "seen", "hide"] + ["impression"] * 7
    events = [event(kind, second, user=f"u{second % 2}") for second, kind in enumerate(kinds)]
    log = tmp_path / "events.jsonl"
    log.write_bytes(jsonl(*events))
    matcher = TriggerMatcher(default_triggers())
    expected = [one._asdict() for line in events for one in matcher.feed(line)]
    result = rerank("replay", rules, log, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(expected) > 3
    assert found["fired"] == expected
    assert (found["events"], found["left_out"], found["bad_lines"]) == (len(events), 0, 0)
    of_click = [one for one in expected if one["rule"] == "click"]
    assert found["rules"]["click"] == {
        "action": "rerank",
        "fired": len(of_click),
        "users": len({one["user"] for one in of_click}),
        "first_ms": of_click[0]["time_ms"],
        "last_ms": of_click[-1]["time_ms"],
    }
    assert found["rules"]["list_used_up"]["fired"] == 0


def test_lines_of_rerank_run_tell_the_length_of_lists(rules: Path) -> None:
    request = Request(user="ann", time_ms=0, id="r", candidates=[Item(id=f"i{n}") for n in range(10)])
    shown = event("impression", 5, position=7, request="r")
    lines = jsonl(
        {"items": [{"id": "i1"}]},
        {"request": request.model_dump(mode="json")},
        {"event": shown.model_dump(mode="json")},
    )
    found = json.loads(rerank("replay", rules, "-", "--json", lines=lines).stdout)
    assert [one["rule"] for one in found["fired"]] == ["list_used_up"]
    assert (found["events"], found["requests"]) == (1, 1)


def test_a_forgotten_user_starts_anew(rules: Path) -> None:
    shown = [event("impression", second) for second in range(8)]
    found = json.loads(rerank("replay", rules, "-", "--json", lines=jsonl(*shown)).stdout)
    assert found["rules"]["exposures_without_click_5"]["fired"] == 1
    lines = jsonl(*shown[:4], {"forget": "ann"}, *shown[4:])
    found = json.loads(rerank("replay", rules, "-", "--json", lines=lines).stdout)
    assert found["rules"]["exposures_without_click_5"]["fired"] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b"[1]", "expected an object, got list"),
        (b'{"user": "ann"}', "invalid Event: item: "),
        (b'{"user": "a", "item": "i", "kind": "click", "time_ms": NaN}', "time_ms"),
        (b'{"event": 3}', "event: expected an object, got int"),
        (b'{"forget": {}}', "forget: expected a user id, got dict"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_and_passed_over(rules: Path, line: bytes, words: str) -> None:
    result = rerank("replay", rules, "-", "--json", lines=jsonl(event("click", 1), b"", line, event("click", 2)))
    assert result.exit_code == 1
    assert result.stderr.startswith("line 3: ")
    assert words in result.stderr
    found = json.loads(result.stdout)
    assert (found["bad_lines"], found["rules"]["click"]["fired"]) == (1, 2)


def test_the_list_of_firings_is_bounded_and_the_counts_are_not(rules: Path) -> None:
    lines = jsonl(*(event("click", second) for second in range(30)))
    found = json.loads(rerank("replay", rules, "-", "--json", "--limit", 4, lines=lines).stdout)
    assert (len(found["fired"]), found["left_out"], found["rules"]["click"]["fired"]) == (4, 26, 30)
    text = rerank("replay", rules, "-", "--limit", 4, lines=lines).stdout
    assert all(time in text for time in ("00:00:00.000", "00:00:03.000", "00:00:29"))
    assert "00:00:04.000" not in text
    assert "26 more firings are not listed; give a higher --limit." in text


def test_an_empty_log_fires_nothing(rules: Path) -> None:
    result = rerank("replay", rules, "-", lines=b"")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "list_used_up" in result.stdout


def test_a_log_that_is_missing_is_a_wrong_call(rules: Path, tmp_path: Path) -> None:
    result = rerank("replay", rules, tmp_path / "none.jsonl")
    assert result.exit_code == 2
    assert "is no file; give one, or - for stdin" in " ".join(result.stderr.replace("│", " ").split())
