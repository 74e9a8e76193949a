"""A log as columns: events, and lists with labels, checked once for all rows.

>>> from rerank_features.log import EventColumns
>>> events = EventColumns(user=["u", "u"], item=["a", "b"], kind=["click", "click"], time_ms=[1_000, 2_000])
>>> len(events), events.user.names
(2, ('u',))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import EventError
from rerank_features.events import KIND_PATTERN, MAX_ID_BYTES, MAX_POSITION, MAX_TIME_MS, Event


@dataclass(frozen=True)
class Names:
    """A column of words: every different word once, and which of them each row has.

    Attributes
    ----------
    names
        The different words.
    codes
        (N,) int32, the place of each row's word in ``names``; -1 for none.

    Examples
    --------
    >>> Names.of(["b", "a", "b"])
    Names(names=('b', 'a'), codes=array([0, 1, 0], dtype=int32))
    """

    names: tuple[str, ...]
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, column: Any, where: str = "column") -> Names:
        """Read a column: words, whole numbers (their decimal digits are the words), or Names already.

        Parameters
        ----------
        column
            A list, a NumPy array, or anything that becomes one; None and missing values are no word.
        where
            How errors call it.

        Raises
        ------
        EventError
            A value is neither a word nor a whole number.
        """
        if isinstance(column, Names):
            return column
        if isinstance(column, list | tuple):  # NumPy would turn what is mixed into words
            return cls(*_coded(column, where))
        array = np.asarray(column)
        if array.ndim != 1:
            raise EventError(f"{where}: expected one value for each row, got an array of shape {array.shape}")
        if array.dtype.kind in "iu":
            distinct, codes = np.unique(array, return_inverse=True)
            return cls(tuple(map(str, distinct.tolist())), codes.astype(np.int32))
        if array.dtype.kind not in "OUT" and array.size:
            raise EventError(f"{where}: expected words or whole numbers, got values of type {array.dtype}")
        return cls(*_coded(array.tolist(), where))

    def __len__(self) -> int:
        return len(self.codes)


class EventColumns:
    """Events as columns of equal length, in any order.

    Parameters
    ----------
    user, item, kind
        Words, or whole numbers for ids; see :meth:`Names.of`.
    time_ms
        Milliseconds since 1970, UTC.
    value
        Finite numbers, NaN for none; None when no event has one.
    position
        From 0, -1 for none; None when no event has one.

    Raises
    ------
    EventError
        Lengths differ, or a value is out of range; the message names the column and the first bad row.

    Examples
    --------
    >>> columns = EventColumns(user=[7], item=[1], kind=["dwell"], time_ms=[5], value=[2.5])
    >>> columns.item.names, columns.value.tolist()
    (('1',), [2.5])
    """

    def __init__(
        self,
        *,
        user: Any,
        item: Any,
        kind: Any,
        time_ms: Any,
        value: Any = None,
        position: Any = None,
    ) -> None:
        self.user = _ids("user", user)
        count = len(self.user)
        self.item = _ids("item", item, count)
        self.kind = Names.of(kind, "kind")
        _same_length("kind", len(self.kind), count)
        for name in self.kind.names:
            if not KIND_PATTERN.fullmatch(name):
                raise EventError(f"kind: {name!r} is no kind; expected lower-case letters, digits and underscores")
        _no_missing("kind", self.kind)
        self.time_ms = _times("time_ms", time_ms, count)
        self.value = _numbers("value", value, count)
        self.position = _positions(position, count)

    def __len__(self) -> int:
        return len(self.time_ms)


class ListColumns:
    """Lists that were shown, with labels: point-in-time training data is made of them.

    Parameters
    ----------
    user, time_ms
        (L,) whose list it is, and when it was shown.
    offsets
        (L + 1,) whole numbers from 0; list ``i`` has the candidates ``offsets[i]`` to ``offsets[i + 1]``.
    item, label
        (R,) the candidates in the server's order, and what each turned out to be worth, not negative.
    score
        (R,) the server's scores, or None.
    mask
        (R,) False for candidates that the loss ignores, or None.
    context
        Facts of the moment by name, (L,) each: numbers (NaN for none) or words (None for none).

    Raises
    ------
    EventError
        Lengths differ, or a value is out of range; the message names the column and the first bad row.

    Examples
    --------
    >>> lists = ListColumns(user=["u"], time_ms=[5], offsets=[0, 2], item=["a", "b"], label=[0, 1])
    >>> len(lists), lists.label.tolist()
    (1, [0.0, 1.0])
    """

    def __init__(
        self,
        *,
        user: Any,
        time_ms: Any,
        offsets: Any,
        item: Any,
        label: Any,
        score: Any = None,
        mask: Any = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        self.user = _ids("user", user)
        count = len(self.user)
        self.time_ms = _times("time_ms", time_ms, count)
        self.item = _ids("item", item)
        rows = len(self.item)
        self.offsets = _offsets(offsets, count, rows)
        label = _numbers("label", label, rows)
        bad = np.flatnonzero(~(label >= 0.0))
        if bad.size:
            raise EventError(f"label: row {bad[0]} is {label[bad[0]]}; expected a number that is not negative")
        self.label = label.astype(np.float32)
        self.score = None if score is None else _finite("score", _numbers("score", score, rows))
        self.mask = np.ones(rows, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        _same_length("mask", len(self.mask), rows)
        self.context = dict(context or {})
        for name, column in self.context.items():
            _same_length(f"context {name!r}", len(column), count)

    def __len__(self) -> int:
        return len(self.time_ms)


def _coded(values: Sequence[Any], where: str) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    distinct = dict.fromkeys(values)
    places: dict[Any, int] = dict(zip(distinct, range(len(distinct)), strict=True))
    codes = np.fromiter(map(places.__getitem__, values), np.int64, len(values))
    names: list[str] = []
    moved = np.empty(len(places), np.int32)
    for place, value in enumerate(places):
        if value is None or (isinstance(value, float) and value != value):
            moved[place] = -1
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            row = int(np.flatnonzero(codes == place)[0])
            raise EventError(f"{where}: row {row} is {value!r}; expected a word or a whole number")
        moved[place] = len(names)
        names.append(str(value))
    if len(set(names)) < len(names):
        raise EventError(f"{where}: holds words and numbers that read the same; give all of them as words")
    return tuple(names), moved[codes]


def _ids(where: str, column: Any, count: int | None = None) -> Names:
    names = Names.of(column, where)
    if count is not None:
        _same_length(where, len(names), count)
    for name in names.names:
        if not name or len(name.encode(errors="replace")) > MAX_ID_BYTES:
            raise EventError(f"{where}: {name[:32]!r} is no id; expected 1 to {MAX_ID_BYTES} bytes")
    _no_missing(where, names)
    return names


def _no_missing(where: str, names: Names) -> None:
    missing = np.flatnonzero(names.codes < 0)
    if missing.size:
        raise EventError(f"{where}: row {missing[0]} has none; every row needs one")


def _same_length(where: str, length: int, count: int) -> None:
    if length != count:
        raise EventError(f"{where}: {length} rows, but the first column has {count}; columns must be equally long")


def _whole(where: str, column: Any, count: int) -> NDArray[np.int64]:
    array = np.asarray(column)
    if array.shape != (count,):
        raise EventError(f"{where}: shape {array.shape}, expected ({count},)")
    if array.dtype.kind not in "iu" and count:
        raise EventError(f"{where}: expected whole numbers, got values of type {array.dtype}")
    return array.astype(np.int64)


def _times(where: str, column: Any, count: int) -> NDArray[np.int64]:
    times = _whole(where, column, count)
    bad = np.flatnonzero((times < 0) | (times > MAX_TIME_MS))
    if bad.size:
        raise EventError(
            f"{where}: row {bad[0]} is {times[bad[0]]}; expected milliseconds since 1970, from 0 to {MAX_TIME_MS}"
        )
    return times


def _positions(column: Any, count: int) -> NDArray[np.int64]:
    if column is None:
        return np.full(count, -1, np.int64)
    positions = _whole("position", column, count)
    bad = np.flatnonzero((positions < -1) | (positions > MAX_POSITION))
    if bad.size:
        raise EventError(f"position: row {bad[0]} is {positions[bad[0]]}; expected 0 to {MAX_POSITION}, or -1 for none")
    return positions


def _numbers(where: str, column: Any, count: int) -> NDArray[np.float64]:
    if column is None:
        return np.full(count, np.nan)
    try:
        numbers = np.asarray(column, np.float64)
    except (TypeError, ValueError) as error:
        raise EventError(f"{where}: expected numbers: {error}") from None
    if numbers.shape != (count,):
        raise EventError(f"{where}: shape {numbers.shape}, expected ({count},)")
    bad = np.flatnonzero(np.isinf(numbers))
    if bad.size:
        raise EventError(f"{where}: row {bad[0]} is {numbers[bad[0]]}; expected a finite number")
    return numbers


def _finite(where: str, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    bad = np.flatnonzero(np.isnan(numbers))
    if bad.size:
        raise EventError(f"{where}: row {bad[0]} is not a number; every candidate needs a score, or none has one")
    return numbers


def _offsets(column: Any, count: int, rows: int) -> NDArray[np.int64]:
    offsets = _whole("offsets", column, count + 1)
    if offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
        raise EventError(
            f"offsets: expected to rise from 0 to the {rows} candidates, got {offsets[0]} to {offsets[-1]}"
        )
    return offsets


def event_arrays(events: Sequence[Event]) -> dict[str, NDArray[Any]]:
    """Arguments of :class:`EventColumns` for events as objects.

    Examples
    --------
    >>> event_arrays([Event(user="u", item="a", kind="click", time_ms=5)])["time_ms"].tolist()
    [5]
    """
    return {
        "user": np.array([event.user for event in events], object),
        "item": np.array([event.item for event in events], object),
        "kind": np.array([event.kind for event in events], object),
        "time_ms": np.array([event.time_ms for event in events], np.int64),
        "value": np.array([np.nan if event.value is None else event.value for event in events], np.float64),
        "position": np.array([-1 if event.position is None else event.position for event in events], np.int64),
    }


def event_columns(events: Iterable[Event]) -> EventColumns:
    """Columns of events as objects.

    Examples
    --------
    >>> len(event_columns([Event(user="u", item="a", kind="click", time_ms=0)]))
    1
    """
    return EventColumns(**event_arrays(list(events)))
