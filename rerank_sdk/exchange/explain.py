"""What is wrong with a mapping, in one line: where, what was expected, what came, and the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import ValidationError

_SHOWN = 3
_MAX_SHOWN = 80
_WORDS = {
    "model_type": "expected a path, a list of paths, or a table of options",
    "dict_type": "expected a table",
    "tuple_type": "expected a list; in TOML each of its tables is headed by a name in double brackets",
    "string_pattern_mismatch": "a kind is made of lower-case letters, digits and _, begins with a letter, and has at "
    "most 64 of them",
}
"""Own words for those of pydantic's that speak of Python or of patterns."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message: the known name that is most like the one that came, or nothing.

    Examples
    --------
    >>> nearest("segmnt", ["segment", "snowplow"]), nearest("x", ["segment"])
    ('; did you mean segment?', '')
    """
    # Case is no reason to miss a name.
    by_fold = {one.casefold(): one for one in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return f"; did you mean {by_fold[near[0]]}?" if near else ""


def explain(error: ValidationError, options: Iterable[str]) -> str:
    """Say in one line what is wrong with a mapping.

    Parameters
    ----------
    error
        What pydantic found.
    options
        Names that exist, for the nearest to one that does not.
    """
    parts = []
    for problem in error.errors(include_url=False)[:_SHOWN]:
        place = ".".join(str(step) for step in problem["loc"])
        text = _WORDS.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        if problem["type"] == "extra_forbidden":
            text = "unknown option" + (nearest(str(problem["loc"][-1]), options) or "; remove it")
        elif place and problem["type"] not in ("missing", "value_error"):
            came = ascii(problem.get("input"))
            text += f" (got {came if len(came) <= _MAX_SHOWN else came[:_MAX_SHOWN] + '…'})"
        parts.append(f"{place}: {text}" if place else text)
    more = error.error_count() - len(parts)
    return "invalid mapping: " + "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
