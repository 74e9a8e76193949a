"""Training data of a whole log at once: the device's own machine code, run over columns.

    items, EventColumns, ListColumns   ─▶   TrainingSet, a row for each candidate of each list

Every list gets the features of its own moment: events before it count, events of the same millisecond and later do not.
The arrays are, bit for bit, those of :func:`~rerank_features.training_set.build_training_set`, when that gets the same
events and lists in order of time after all items.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import EventError, InputError
from rerank_features import compiler as code
from rerank_features.compiler.program import Program, compile_spec
from rerank_features.dense import Keyed
from rerank_features.events import Item
from rerank_features.hashing import fact_text
from rerank_features.log import EventColumns, ListColumns, Names
from rerank_features.spec import FeatureSpec
from rerank_features.state import FlatState, as_items, item_key
from rerank_features.training_set import TrainingSet

Ints = NDArray[np.int64]


def training_set_from_log(
    spec: FeatureSpec, *, items: Iterable[Item], events: EventColumns, lists: ListColumns
) -> TrainingSet:
    """Compute the features of every list of a log.

    A user at a time, so that memory holds the state of one; with features of scope "everyone" all users together, in
    order of time. The spec's ``max_items`` and ``max_users`` do not bound it: on the device they bound what one user
    meets, here it would be what all have met.

    Parameters
    ----------
    spec
        What to compute.
    items
        The items' fields. They are known from the start; for fields that change in the course of the log use
        :func:`~rerank_features.training_set.build_training_set`.
    events, lists
        In any order; of events of one user and millisecond the first row comes first.

    Returns
    -------
    TrainingSet
        Lists in the order that they were given in.

    Raises
    ------
    InputError
        There is no list.
    EventError
        An item or a context column does not fit the spec.

    Examples
    --------
    >>> from rerank_features.spec import Count
    >>> spec = FeatureSpec(name="feed", dense=[Count(name="clicks", key="item", kinds=["click"], window=3600)])
    >>> events = EventColumns(user=["u"], item=["b"], kind=["click"], time_ms=[1_000])
    >>> lists = ListColumns(user=["u"], time_ms=[2_000], offsets=[0, 2], item=["a", "b"], label=[0, 1])
    >>> training_set_from_log(spec, items=[], events=events, lists=lists).per_candidate["dense"].tolist()
    [[0.0], [1.0]]
    """
    if not len(lists):
        raise InputError("the log has no list to learn from")
    known = as_items(items)
    names = {item.id for item in known}
    known += tuple(Item(id=name) for name in lists.item.names if name not in names)
    users = _joined(events.user, lists.user)
    raised = {"max_items": max(spec.max_items, len(known)), "max_users": max(spec.max_users, len(users))}
    log = _Log(spec.model_copy(update=raised), known, events, lists, users)
    if any(isinstance(feature, Keyed) and feature.scope == "everyone" for feature in spec.dense):
        log.run_together()
    else:
        log.run_user_by_user()
    return TrainingSet(
        lists=len(lists),
        offsets=lists.offsets,
        per_candidate=log.outputs.per_candidate(),
        per_list=log.outputs.per_list(),
        labels=lists.label,
        mask=lists.mask,
        times_ms=lists.time_ms,
        spec_hash=spec.content_hash(),
    )


def _joined(events: Names, lists: Names) -> dict[str, int]:
    """Every user of either, numbered."""
    numbers: dict[str, int] = {}
    for name in (*events.names, *lists.names):
        numbers.setdefault(name, len(numbers))
    return numbers


class _Outputs:
    """All arrays of all lists."""

    def __init__(self, spec: FeatureSpec, program: Program, lists: int, candidates: int) -> None:
        self._program = program
        embedding = spec.items.embedding_dim if spec.embedding else 0
        self.dense = np.empty((candidates, program.features.shape[0]), np.float32)
        self.ids = np.empty((candidates, program.id_width), np.int32)
        self.embedding = np.empty((candidates, embedding), np.float32)
        self.integers = np.zeros((lists, program.buffer_sizes[0]), np.int32)
        self.singles = np.zeros((lists, program.buffer_sizes[1]), np.float32)

    def per_candidate(self) -> dict[str, NDArray[Any]]:
        arrays = {"dense": self.dense, "ids": self.ids, "embedding": self.embedding}
        return {name: array for name, array in arrays.items() if array.shape[1]}

    def per_list(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for one in self._program.segments:
            buffer: NDArray[Any] = self.integers if one.integer else self.singles
            arrays[one.name] = buffer[:, one.start : one.stop].reshape(-1, *one.shape)
        return arrays


class _Log:
    """A log as the records that the machine code reads."""

    def __init__(
        self,
        spec: FeatureSpec,
        items: tuple[Item, ...],
        events: EventColumns,
        lists: ListColumns,
        users: dict[str, int],
    ) -> None:
        self._program = compile_spec(spec)
        self._state = FlatState(spec, self._program, active_users=len(users))
        self._spec, self._users = spec, list(users)
        self._state.touch(self._state.rows_of(items))
        self.outputs = _Outputs(spec, self._program, len(lists), len(lists.item))
        self._job = np.zeros(code.REPLAY_CELLS, np.int64)
        self._event_users, self._events = self._event_records(events, users)
        self._list_users = _mapped(lists.user, users)
        self._inputs: list[NDArray[Any]] = []
        self._requests = self._request_records(lists)

    def run_user_by_user(self) -> None:
        """Each user's events and lists in order of time; the state forgets a user before the next."""
        events, requests, state = self._events, self._requests, self._state
        order = np.lexsort((events[:, code.EVENT_TIME_MS], self._event_users))
        events, event_users = events[order], self._event_users[order]
        order = np.lexsort((requests[:, code.REQUEST_NOW_MS], self._list_users))
        requests, list_users = requests[order], self._list_users[order]
        places = np.arange(len(self._users) + 1)
        first_event = np.searchsorted(event_users, places).tolist()
        first_list = np.searchsorted(list_users, places).tolist()
        for number, name in enumerate(self._users):
            event, event_end = first_event[number : number + 2]
            request, request_end = first_list[number : number + 2]
            if request == request_end:
                continue
            row = state.user_row(name)
            events[event:event_end, code.EVENT_USER] = row
            requests[request:request_end, code.REQUEST_USER] = row
            self._run(events, event, event_end, requests, request, request_end)
            state.forget(name)

    def run_together(self) -> None:
        """All events and lists in order of time."""
        rows = np.array([self._state.user_row(name) for name in self._users], np.int64)
        self._events[:, code.EVENT_USER] = rows[self._event_users]
        self._requests[:, code.REQUEST_USER] = rows[self._list_users]
        events = self._events[np.argsort(self._events[:, code.EVENT_TIME_MS], kind="stable")]
        requests = self._requests[np.argsort(self._requests[:, code.REQUEST_NOW_MS], kind="stable")]
        self._run(events, 0, len(events), requests, 0, len(requests))

    def _run(self, events: Ints, event: int, event_end: int, requests: Ints, request: int, request_end: int) -> None:
        state, job = self._state, self._job
        job[:] = (events.ctypes.data, event, event_end, requests.ctypes.data, request, request_end, 0)
        while not state.code.replay(state.address, job.ctypes.data):
            if job[code.REPLAY_STOPPED] == code.STOPPED_EVENT:
                state.grow_counters()
            else:
                state.grow_scratch(requests[job[code.REPLAY_REQUEST], code.REQUEST_NEEDS :].tolist())

    def _event_records(self, events: EventColumns, users: dict[str, int]) -> tuple[Ints, Ints]:
        """Numbers of users, and records without their rows, of the events that matter."""
        program, rows = self._program, self._state.item_rows
        kinds = np.array([program.kind_number(name) for name in events.kind.names] or [0], np.int64)
        kind = kinds[events.kind.codes]
        used = kind >= 0
        item_rows = np.array([rows.get(name, -1) for name in events.item.names] or [0], np.int64)
        item_keys = np.array([0 if name in rows else item_key(name) for name in events.item.names] or [0], np.int64)
        codes = events.item.codes[used]
        records = np.empty((codes.size, code.EVENT_CELLS), np.int64)
        records[:, code.EVENT_KIND] = kind[used]
        records[:, code.EVENT_ROW] = item_rows[codes]
        records[:, code.EVENT_KEY] = item_keys[codes]
        records[:, code.EVENT_TIME_MS] = events.time_ms[used]
        records[:, code.EVENT_POSITION] = events.position[used]
        records[:, code.EVENT_VALUE] = np.nan_to_num(events.value[used]).view(np.int64)
        records[:, code.EVENT_SCOPE] = code.FOR_ALL
        return _mapped(events.user, users)[used], records

    def _request_records(self, lists: ListColumns) -> Ints:
        program, outputs = self._program, self.outputs
        count, first = np.diff(lists.offsets), lists.offsets[:-1]
        number = np.arange(len(lists))
        rows = np.array([self._state.item_rows[name] for name in lists.item.names] or [0], np.int32)[lists.item.codes]
        numbers, words, matches = self._context(lists)
        records = np.zeros((len(lists), code.REQUEST_CELLS), np.int64)

        def place(cell: int, array: NDArray[Any], at: Ints, *shape: Any) -> None:
            """Where each list's part of an array begins, and how large it is."""
            self._inputs.append(array)
            records[:, cell] = array.ctypes.data + array.strides[0] * at
            for axis, length in enumerate(shape):
                records[:, cell + 1 + axis] = length

        place(code.REQUEST_ROWS, rows, first, count)
        if lists.score is not None:
            place(code.REQUEST_SCORES, lists.score, first, count)
        place(code.REQUEST_NUMBERS, numbers, number, numbers.shape[1])
        place(code.REQUEST_WORDS, words, number, words.shape[1])
        place(code.REQUEST_MATCHES, matches, number, matches.shape[1])
        place(code.REQUEST_SINGLES, outputs.singles, number, outputs.singles.shape[1])
        place(code.REQUEST_INTEGERS, outputs.integers, number, outputs.integers.shape[1])
        place(code.REQUEST_DENSE, outputs.dense, first, count, program.features.shape[0])
        place(code.REQUEST_IDS, outputs.ids, first, count, program.id_width)
        embedded = count if self._spec.embedding else 0 * count
        place(code.REQUEST_EMBEDDING, outputs.embedding, first, embedded, self._spec.items.embedding_dim)
        records[:, code.REQUEST_NOW_MS] = lists.time_ms
        return records

    def _context(self, lists: ListColumns) -> tuple[NDArray[np.float64], Ints, Ints]:
        """Declared numbers, hashed words, and words to match with items', a row for each list."""
        fields, state, count = self._spec.context, self._state, len(lists)
        numbers = np.full((count, len(fields.numeric)), np.nan)
        for i, name in enumerate(fields.numeric):
            if name in lists.context:
                numbers[:, i] = _context_numbers(name, lists.context[name], count)
        words = np.zeros((count, len(fields.categorical)), np.int64)
        for i, name in enumerate(fields.categorical):
            if name in lists.context:
                column = _context_words(name, lists.context[name])
                hashes = np.array([*(state.word(name, word) for word in column.names), 0], np.int64)
                words[:, i] = hashes[column.codes]
        matches = np.zeros((count, sum(width for _, _, width in self._program.matches)), np.int64)
        at = 0
        for context, field, width in self._program.matches:
            if context in lists.context:
                column = _context_words(context, lists.context[context])
                table = np.zeros((len(column.names) + 1, width), np.int64)
                for row, text in enumerate(column.names):
                    hashed = state.match_words(context, field, width, text)
                    table[row, : len(hashed)] = hashed
                matches[:, at : at + width] = table[column.codes]
            at += width
        return numbers, words, matches


def _mapped(column: Names, numbers: dict[str, int]) -> Ints:
    return np.array([numbers[name] for name in column.names] or [0], np.int64)[column.codes]


def _context_numbers(name: str, column: Any, count: int) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(column, np.float64)
    except (TypeError, ValueError):
        raise EventError(f"context {name!r}: expected numbers, as the spec declares it under context.numeric") from None
    if numbers.shape != (count,) or np.isinf(numbers).any():
        raise EventError(f"context {name!r}: expected {count} finite numbers, NaN for none")
    return np.clip(numbers, -code.MAX_FLOAT32, code.MAX_FLOAT32)


def _context_words(name: str, column: Any) -> Names:
    """Words of the context; numbers and booleans as their JSON text, as in a request."""
    if isinstance(column, Names):
        return column
    texts = [None if value is None else fact_text(value) for value in _listed(column)]
    return Names.of(np.array(texts, object), f"context {name!r}")


def _listed(column: Any) -> list[Any]:
    listed: list[Any] = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return listed
