"""What pydantic found wrong with a rule, in one line that says where, what came, and the way out."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from rerank_engine.errors import SpecError


def explain(part: str, options: list[str], data: dict[str, Any], error: ValidationError) -> str:
    """One line: which rule, which step and field, what is wrong, what came, and the way out.

    Parameters
    ----------
    part
        Name of the class: the spec, a rule or a step.
    options
        All that it knows.
    data
        What it was given.
    error
        What pydantic found.
    """
    title = {"TriggerStep": "step", "TriggerRule": "rule"}.get(part, "trigger spec")
    if part == "TriggerRule" and "name" in data:
        title = f"rule {data['name']!r}"
    problems = error.errors(include_url=False)
    below = {problem["loc"][:-1] for problem in problems}
    # A list whose parts are wrong counts as too short as well; that says nothing.
    problems = [problem for problem in problems if not (problem["type"] == "too_short" and problem["loc"] in below)]
    parts = []
    for problem in problems[:3]:
        location, cause = problem["loc"], problem.get("ctx", {}).get("error")
        if isinstance(cause, SpecError):  # Of a part, which says what it is but not where.
            text = str(cause)
            if location[:1] == ("steps",):
                text = f"{title}: step {int(location[1]) + 1}{text.removeprefix('step')}"
            elif location[:1] == ("rules",) and text.startswith("rule:"):
                text = f"rule number {int(location[1]) + 1}{text.removeprefix('rule')}"
            parts.append(text)
            continue
        path = ".".join(str(key) for key in location)
        parts.append(f"{title}: {path}: {_fault(options, problem, cause)}" if path else f"{title}: {cause}")
    more = len(problems) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _fault(options: list[str], problem: Any, cause: object) -> str:
    came = repr(problem.get("input"))
    came = came if len(came) <= 80 else came[:80] + "…"
    if problem["type"] == "extra_forbidden":
        return f"unknown option; the options are {', '.join(options)}{_nearest(str(problem['loc'][-1]), options)}"
    if problem["type"] == "missing":
        return "it is missing; add it"
    if problem["type"] == "literal_error":
        known = [name.strip(" '") for name in problem["ctx"]["expected"].replace(" or ", ", ").split(",")]
        listed = ", ".join(repr(name) for name in known)
        return f"{came} is none of {listed}{_nearest(str(problem.get('input')), known)}"
    if cause is not None:
        return str(cause)
    message = problem["msg"].replace("valid tuple", "list").replace("valid dictionary", "table")
    hint = "list event kinds, lower-case identifiers such as 'click'"
    if not {"kinds", "without"} & set(problem["loc"]):
        hint = "correct the value"
    return f"{message}, got {came}; {hint}"


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; use one of them"
