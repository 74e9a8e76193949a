r"""Dotted paths into a record: ``properties.products.0.product_id``.

A step is a key of an object or the number of an element of a list. A dot inside a key is written as ``\.``. The first
step ``each`` stands for the element that a rule with ``each`` is looking at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

EACH = "each"
"""First step of a path that begins at the element of an exploded list."""

Getter = Callable[[dict[str, Any], Any], Any]
"""Takes a record and the element looked at, gives the value at a path or None."""

_STEP = re.compile(r"((?:[^.\\]|\\.)+)(?:\.|$)", re.DOTALL)


def steps_of(path: str) -> tuple[str, ...]:
    r"""Take a path apart.

    Raises
    ------
    ValueError
        A step is empty.

    Examples
    --------
    >>> steps_of(r"context.app\.version"), steps_of("each.product_id")
    (('context', 'app.version'), ('each', 'product_id'))
    """
    steps, place = [], 0
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None:
            break
        steps.append(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL))
        place = found.end()
    if not steps or place < len(path) or (path.endswith(".") and not path.endswith("\\.")):
        raise ValueError(f"{path!r} is no path: write keys with dots between them, for example properties.product_id")
    return tuple(steps)


def getter(path: str) -> Getter:
    """A function that finds the value at a path, None where there is none.

    Examples
    --------
    >>> getter("a.1.b")({"a": [0, {"b": 5}]}, None)
    5
    >>> getter("each.id")({}, {"id": 7}), getter("each")({}, "x"), getter("a.b")({"a": 1}, None)
    (7, 'x', None)
    """
    first, *rest = steps_of(path)
    if first == EACH:
        return lambda _, element: _walk(element, rest)
    if not rest:
        return lambda record, _: record.get(first)
    if len(rest) == 1 and not rest[0].isdecimal():
        second = rest[0]

        def of_two(record: dict[str, Any], _: Any) -> Any:
            inner = record.get(first)
            return inner.get(second) if type(inner) is dict else None

        return of_two
    return lambda record, _: _walk(record.get(first), rest)


def first_of(paths: Sequence[str]) -> Getter:
    """A function that finds the first value that is there: neither null nor empty text.

    Examples
    --------
    >>> first_of(["userId", "anonymousId"])({"userId": "", "anonymousId": "a1"}, None)
    'a1'
    """
    getters = tuple(map(getter, paths))
    if len(getters) == 1:
        (only,) = getters

        def one(record: dict[str, Any], element: Any) -> Any:
            value = only(record, element)
            return None if value == "" else value

        return one

    def several(record: dict[str, Any], element: Any) -> Any:
        for get in getters:
            value = get(record, element)
            if value is not None and value != "":
                return value
        return None

    return several


def _walk(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if type(value) is dict:
            value = value.get(step)
        elif type(value) is list and step.isascii() and step.isdecimal() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
