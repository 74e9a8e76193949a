"""Events in, arrays out: the state of a spec and the compiled functions over it.

>>> from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
>>> spec = FeatureSpec.from_toml('''
... name = "feed"
... [[dense]]
... kind = "count"
... name = "clicks_1h"
... key = "item"
... kinds = ["click"]
... window = 3600
... [[dense]]
... kind = "server_rank"
... name = "rank"
... ''')
>>> pipeline = FeaturePipeline(spec)
>>> pipeline.update(Event(user="u", item="b", kind="click", time_ms=1_000))
True
>>> batch = pipeline.emit(Request(user="u", time_ms=2_000, candidates=[Item(id="a"), Item(id="b")]))
>>> batch.arrays["dense"].tolist()
[[0.0, 0.0], [1.0, 1.0]]
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import EventError, InputError
from rerank_features import compiler as code
from rerank_features.compiler.program import Program, compile_spec
from rerank_features.events import Event, Item, Request
from rerank_features.hashing import fact_text
from rerank_features.packing import EVENT, address_of, pack_events, replay_records
from rerank_features.snapshot import load_row, save_row
from rerank_features.spec import FeatureSpec
from rerank_features.state import FlatState, as_items, item_key

_Output = NDArray[np.float32] | NDArray[np.int32]

_NO_SCORES = array("d")
_REQUEST = struct.Struct(f"={code.REQUEST_CELLS}q")
_NEEDS = struct.Struct("=3q")
_CELL = struct.Struct("=q")
_OF_CANDIDATES = "dense", "ids", "embedding"
_KINDS = np.float32, np.int32, np.float32


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """The arrays of one request.

    Attributes
    ----------
    n
        Number of candidates.
    arrays
        By name, with the shapes of :meth:`FeaturePipeline.array_shapes`: fresh, C-contiguous, the caller's. They lie
        in one block of memory, which lives as long as any of them.
    time_ms
        The moment that the features describe: the request's time or the user's newest event's, if later.
    clock_skew_ms
        How far the user's newest event lies after the request, else 0. Above 0 a clock has gone backwards.

    Examples
    --------
    >>> FeatureBatch(n=0, arrays={}, time_ms=5, clock_skew_ms=0).time_ms
    5
    """

    n: int
    arrays: dict[str, _Output]
    time_ms: int
    clock_skew_ms: int


class FeaturePipeline:
    """Computes the features of a spec from a stream of events.

    The features do not depend, bit for bit, on the order in which a user's events arrive, as long as the items
    are remembered before their events and nothing is evicted. One thing is bounded: for ``session`` windows it
    holds while the events that have arrived form at most 16 separate sessions at any moment. Beyond that the
    oldest are given up, and an event that is older than all 16 counts in no session. Events that arrive in the
    order of their times always count exactly.

    There are no locks inside: one thread at a time may use a pipeline. Compiled functions release the GIL.

    Parameters
    ----------
    spec
        What to compute.

    Examples
    --------
    >>> from rerank_features.spec import Count
    >>> clicks = Count(name="clicks", key="user", kinds=["click"], window="ever")
    >>> pipeline = FeaturePipeline(FeatureSpec(name="feed", dense=[clicks]))
    >>> pipeline.dense_columns, pipeline.array_shapes()
    (('clicks',), {'dense': ('N', 1)})
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._program = compile_spec(spec)
        self._state = FlatState(spec, self._program)
        self._kinds = self._program.kinds
        self._other_kind = self._program.other_kind
        self._reads_scores = bool((self._program.features[:, code.OP] == code.SERVER_SCORE).any())
        self._embedding_dim = spec.items.embedding_dim
        self._event = bytearray(8 * code.EVENT_CELLS)
        self._event_address = address_of(self._event)
        self._outputs = _Outputs(spec, self._program)
        self._request = bytearray(_REQUEST.size)
        self._request_address = address_of(self._request)
        self._numbers = array("d", [0.0] * len(spec.context.numeric))
        self._words = array("q", [0] * len(spec.context.categorical))
        self._matches = array("q", [0] * sum(width for _, _, width in self._program.matches))
        self._inputs = [*self._numbers.buffer_info(), *self._words.buffer_info(), *self._matches.buffer_info()]

    @property
    def spec(self) -> FeatureSpec:
        """What is computed."""
        return self._spec

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the columns of ``dense``."""
        return tuple(feature.name for feature in self._spec.dense)

    def array_shapes(self) -> dict[str, tuple[str | int, ...]]:
        """Shape of every array that :meth:`emit` returns; "N" is the number of candidates.

        Examples
        --------
        >>> from rerank_features.spec import SequenceFeature
        >>> clicks = SequenceFeature(name="clicks", kinds=["click"], length=5, dense=True)
        >>> FeaturePipeline(FeatureSpec(name="feed", sequences=[clicks])).array_shapes()
        {'clicks_dense': (5, 2), 'clicks_mask': (5,)}
        """
        shapes: dict[str, tuple[str | int, ...]] = {}
        if self._spec.dense:
            shapes["dense"] = ("N", len(self._spec.dense))
        if self._spec.ids:
            shapes["ids"] = ("N", self._program.id_width)
        if self._spec.embedding:
            shapes["embedding"] = ("N", self._embedding_dim)
        for segment in self._program.segments:
            shapes[segment.name] = segment.shape
        return shapes

    def groups(self) -> dict[str, list[int]]:
        """Columns of ``dense`` by the label under which they are reported.

        Examples
        --------
        >>> from rerank_features.spec import ServerRank, ServerScore
        >>> columns = [ServerScore(name="score", group="server"), ServerRank(name="rank", group="server")]
        >>> FeaturePipeline(FeatureSpec(name="feed", dense=columns)).groups()
        {'server': [0, 1]}
        """
        groups: dict[str, list[int]] = {}
        for column, feature in enumerate(self._spec.dense):
            groups.setdefault(feature.label, []).append(column)
        return groups

    def remember(self, items: Iterable[Item]) -> NDArray[np.int32]:
        """Store the declared fields of items; where an item is known, its fields are replaced if they differ.

        Of two different items with one id the later counts. The least recently used items are pushed out when
        there are more than ``max_items``.

        Parameters
        ----------
        items
            Any number of items.

        Returns
        -------
        ndarray
            (N,) int32, the row of each item.

        Raises
        ------
        EventError
            An embedding has the wrong length. Nothing is stored then.
        InputError
            Something is no Item, or there are more different items than ``max_items``. Nothing is stored.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).remember([Item(id="a"), Item(id="b")]).tolist()
        [0, 1]
        """
        rows = self._state.rows_of(as_items(items))
        self._state.touch(rows)
        return np.array(rows, np.int32)

    def update(self, event: Event) -> bool:
        """Fold one event into the state, in constant time.

        An event of an item that was never remembered counts under its user and its id; the item's fields are
        missing then. A late event counts at its own time. Delivering an event twice counts it twice.

        Parameters
        ----------
        event
            What happened.

        Returns
        -------
        bool
            False when no feature uses the kind, so that nothing has changed. With a session window every kind
            matters, because it keeps the session alive.

        Examples
        --------
        >>> pipeline = FeaturePipeline(FeatureSpec(name="feed"))
        >>> pipeline.update(Event(user="u", item="a", kind="click", time_ms=0))
        False
        """
        state = self._state
        kind = self._kinds.get(event.kind, self._other_kind)
        if kind < 0:
            return False
        item = event.item
        row = state.item_rows.get(item, -1)
        value, position = event.value, event.position
        EVENT.pack_into(
            self._event,
            0,
            state.user_row(event.user),
            kind,
            row,
            0 if row >= 0 else item_key(item),
            event.time_ms,
            -1 if position is None else position,
            0.0 if value is None else value,
            code.FOR_ALL,
        )
        while not state.code.update(state.address, self._event_address):
            state.grow_counters()
        return True

    def save(self, user: str) -> bytes | None:
        """The state of a user as bytes, which :meth:`restore` reads; None for a user without one.

        They hold counts, times and hashes of ids. Restored, they give the same arrays, bit for bit.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).save("u") is None
        True
        """
        return self._state.saved(user)

    def save_everyone(self) -> bytes | None:
        """What features of scope "everyone" have counted, as bytes; None where the spec has none of them."""
        return save_row(self._state, code.EVERYONE) if self.counts_everyone else None

    @property
    def counts_everyone(self) -> bool:
        """Whether a feature counts events of all users together."""
        return bool((self._program.keys[:, code.KEY_IS_SHARED] != 0).any())

    def restore(self, user: str, events: Iterable[Event], saved: bytes | None = None) -> bool:
        """Replace a user's state by a saved one and the events after it, or by the events alone.

        What counts events of all users is left alone: it has counted these before, or :meth:`restore_everyone` will.

        Parameters
        ----------
        user
            Whose events they are.
        events
            In any order, as for :meth:`update`; those that ``saved`` holds must not be among them.
        saved
            What :meth:`save` gave with the same spec.

        Returns
        -------
        bool
            Whether the user has a state now.

        Raises
        ------
        InputError
            ``saved`` is damaged, or of another spec; the user has no state then. Or an event is of another user.

        Examples
        --------
        >>> spec = FeatureSpec.from_toml('''
        ... name = "feed"
        ... [[dense]]
        ... kind = "count"
        ... name = "clicks"
        ... key = "user"
        ... kinds = ["click"]
        ... window = "ever"
        ... ''')
        >>> first, second = FeaturePipeline(spec), FeaturePipeline(spec)
        >>> first.update(Event(user="u", item="a", kind="click", time_ms=1))
        True
        >>> second.restore("u", [Event(user="u", item="b", kind="click", time_ms=2)], first.save("u"))
        True
        >>> second.emit(Request(user="u", time_ms=3, candidates=[Item(id="a")])).arrays["dense"].tolist()
        [[2.0]]
        """
        state = self._state
        listed = list(events)
        if any(event.user != user for event in listed):
            raise InputError(f"restore: an event of another user than {user!r}; give each user their own events")
        state.forget(user)
        if saved is None and all(self._program.kind_number(event.kind) < 0 for event in listed):
            return False
        row = state.user_row(user)
        if saved is not None:
            try:
                load_row(state, row, saved)
            except InputError:
                state.forget(user)
                raise
        records = pack_events(state, listed, row, code.FOR_USER)
        replay_records(state, records, 0, len(records) // EVENT.size)
        return True

    def restore_everyone(self, events: Iterable[Event], saved: bytes | None = None) -> None:
        """Replace what counts events of all users by saved counts and the events of all users after them.

        Raises
        ------
        InputError
            ``saved`` is damaged, or of another spec; nothing has been counted then.
        """
        self._state.code.forget_user(self._state.address, code.EVERYONE)
        if saved is not None:
            load_row(self._state, code.EVERYONE, saved)
        records = pack_events(self._state, events, code.EVERYONE, code.FOR_EVERYONE)
        replay_records(self._state, records, 0, len(records) // EVENT.size)

    def emit(self, request: Request) -> FeatureBatch:
        """Remember the candidates and compute every array for them.

        Parameters
        ----------
        request
            The list; its candidates may be empty.

        Returns
        -------
        FeatureBatch
            The arrays. A request changes no count, so that asking twice gives the same arrays.

        Raises
        ------
        EventError
            A declared context number is a word, or an embedding has the wrong length.
        InputError
            There are more different candidates than ``max_items``.

        Examples
        --------
        >>> from rerank_features.spec import IdFeature
        >>> ids = [IdFeature(name="id", field="item", buckets=100)]
        >>> pipeline = FeaturePipeline(FeatureSpec(name="feed", ids=ids))
        >>> batch = pipeline.emit(Request(user="u", time_ms=0, candidates=[Item(id="a"), Item(id="b")]))
        >>> batch.arrays["ids"].shape, batch.arrays["ids"].dtype.name
        ((2, 1), 'int32')
        """
        program, state = self._program, self._state
        self._read_context(request)
        rows = state.rows_of(request.candidates)
        count = len(rows)
        scores = _NO_SCORES
        if self._reads_scores and request.scores is not None:
            scores = array("d", request.scores)
        outputs = self._outputs
        starts, cells = outputs.places(count)
        block = np.zeros(cells, np.float32)
        address = block.ctypes.data
        _REQUEST.pack_into(
            self._request,
            0,
            *rows.buffer_info(),
            *scores.buffer_info(),
            *self._inputs,
            address,
            outputs.singles,
            address + 4 * outputs.singles,
            outputs.integers,
            address + 4 * starts[0],
            count,
            program.features.shape[0],
            address + 4 * starts[1],
            count,
            program.id_width,
            address + 4 * starts[2],
            count if self._spec.embedding else 0,
            self._embedding_dim,
            state.known_user_row(request.user),
            request.time_ms,
            0,
            0,
            0,
        )
        while not state.code.emit(state.address, self._request_address):
            state.grow_scratch(_NEEDS.unpack_from(self._request, 8 * code.REQUEST_NEEDS))
        (now_ms,) = _CELL.unpack_from(self._request, 8 * code.REQUEST_NOW_MS)
        return FeatureBatch(count, outputs.views(block, starts, count), now_ms, now_ms - request.time_ms)

    def knows(self, user: str) -> bool:
        """Whether the state holds events of a user; not once they were pushed out or forgotten.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).knows("u")
        False
        """
        return self._state.knows(user)

    def newest_ms(self, user: str) -> int:
        """Time of the user's newest event that matters, -1 for a user without a state.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).newest_ms("u")
        -1
        """
        row = self._state.known_user_row(user)
        return int(self._state.users[row, code.NEWEST]) if row >= 0 else -1

    def forget(self, user: str) -> None:
        """Remove every trace of a user from the state; the memory is overwritten. Unknown users are no error.

        Remembered items stay: they came from the server with a list, and say nothing of who did what.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).forget("u")
        """
        self._state.forget(user)
        self._state.wipe_scratch()
        self._event[:] = bytes(len(self._event))

    def reset(self) -> None:
        """Forget all users and all items.

        Examples
        --------
        >>> FeaturePipeline(FeatureSpec(name="feed")).reset()
        """
        self._state.reset()

    def _read_context(self, request: Request) -> None:
        """Declared numbers, NaN for missing; hashed words, 0 for missing; words to match with items', 0 behind them."""
        fields = self._spec.context
        for i, name in enumerate(fields.numeric):
            value = request.context.get(name)
            if isinstance(value, str):
                raise EventError(
                    f"request.context[{name!r}]: expected a number, as the spec {self._spec.name!r} declares it "
                    f"under context.numeric, got {value!r}; send a number, or declare it under context.categorical"
                )
            # an int may be larger than any float
            self._numbers[i] = math.nan if value is None else max(-code.MAX_FLOAT32, min(value, code.MAX_FLOAT32))
        for i, name in enumerate(fields.categorical):
            value = request.context.get(name)
            self._words[i] = 0 if value is None else self._state.word(name, fact_text(value))
        at = 0
        for context, field, width in self._program.matches:
            value = request.context.get(context)
            words = [] if value is None else self._state.match_words(context, field, width, fact_text(value))
            for j in range(width):
                self._matches[at + j] = words[j] if j < len(words) else 0
            at += width


class _Outputs:
    """Where the arrays of a request lie in one block of memory: sequences first, then what grows with the list."""

    def __init__(self, spec: FeatureSpec, program: Program) -> None:
        self.integers, self.singles = program.buffer_sizes
        self._widths = (
            program.features.shape[0],
            program.id_width,
            spec.items.embedding_dim if spec.embedding else 0,
        )
        self._segments = [
            (one.name, one.shape, np.int32 if one.integer else np.float32, 4 * (one.start + one.integer * self.singles))
            for one in program.segments
        ]

    def places(self, count: int) -> tuple[tuple[int, int, int], int]:
        """Where dense, ids and embedding begin, in cells of four bytes, each at a multiple of 64 bytes; and the end."""
        dense = self.singles + self.integers
        ids = dense + _aligned(count * self._widths[0])
        embedding = ids + _aligned(count * self._widths[1])
        return (dense, ids, embedding), embedding + count * self._widths[2]

    def views(self, block: NDArray[np.float32], starts: tuple[int, int, int], count: int) -> dict[str, _Output]:
        """The arrays by name."""
        arrays: dict[str, _Output] = {}
        for name, kind, start, width in zip(_OF_CANDIDATES, _KINDS, starts, self._widths, strict=True):
            if width:
                arrays[name] = np.ndarray((count, width), kind, block, 4 * start)
        for name, shape, dtype, offset in self._segments:
            arrays[name] = np.ndarray(shape, dtype, block, offset)
        return arrays


def _aligned(cells: int) -> int:
    return -(-cells // 16) * 16
