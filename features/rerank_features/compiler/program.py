"""A spec as descriptor tables for one set of compiled kernels: a new spec costs no compilation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank_features import compiler as code
from rerank_features.dense import (
    ContextMatch,
    ContextNumeric,
    Count,
    DenseFeature,
    HistoryCount,
    HistoryDistinct,
    HistoryMatch,
    HistoryNumber,
    HistoryStreak,
    ItemAge,
    ItemNumeric,
    Keyed,
    ListShare,
    ListSize,
    LocalTime,
    MeanValue,
    OfHistory,
    Rate,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)
from rerank_features.hashing import signed_hash
from rerank_features.parts import KIND_FIELD, USER_KEY, Decay
from rerank_features.spec_check import ENTRY_NUMBERS, several_values, used_kinds

if TYPE_CHECKING:
    from rerank_features.spec import FeatureSpec, IdFeature

Ints = NDArray[np.int64]
Window = float | str | Decay
CounterName = tuple[str, str, tuple[str, ...], tuple[float, float]]
"""Key, scope, kinds in order, least and largest value."""

_TRANSFORMS = {
    "none": code.NO_TRANSFORM,
    "log1p": code.LOG1P,
    "standardize": code.STANDARDIZE,
    "reciprocal": code.RECIPROCAL,
    "affine": code.AFFINE,
    "list_rank": code.LIST_RANK,
    "minus_median": code.MINUS_MEDIAN,
    "minus_mean": code.MINUS_MEAN,
    "minus_previous": code.MINUS_PREVIOUS,
    "minmax": code.MINMAX,
}
_REDUCES = {
    "sum": code.SUM_OF,
    "mean": code.MEAN_OF,
    "max": code.MAX_OF,
    "min": code.MIN_OF,
    "last": code.LAST_OF,
    "count": code.COUNT_OF,
    "share": code.SHARE_OF,
    "since_s": code.SINCE_OF,
    "place": code.PLACE_OF,
    "value_sum": code.SUM_OF,
    "value_mean": code.MEAN_OF,
}
_AGAINST = {"none": code.AGAINST_NONE, "difference": code.AGAINST_DIFFERENCE, "ratio": code.AGAINST_RATIO}
_PARTS_OF_TIME = {
    "hour": code.HOUR,
    "weekday": code.WEEKDAY,
    "hour_sin": code.HOUR_SIN,
    "hour_cos": code.HOUR_COS,
    "weekday_sin": code.WEEKDAY_SIN,
    "weekday_cos": code.WEEKDAY_COS,
}
_COLUMNS = {
    "value": code.COLUMN_VALUE,
    "log_value": code.COLUMN_LOG_VALUE,
    "log_age_s": code.COLUMN_LOG_AGE,
    "log_gap_s": code.COLUMN_LOG_GAP,
    "log_position": code.COLUMN_LOG_POSITION,
}
_ACTIONS = {
    "count": code.ACTION_COUNT,
    "value_sum": code.ACTION_VALUE_SUM,
    "log_delay_s": code.ACTION_LOG_DELAY,
}
_METRICS = {"dot": code.DOT, "cosine": code.COSINE}


@dataclass(frozen=True)
class Segment:
    """One sequence array inside the flat output buffers.

    Attributes
    ----------
    name, shape
        Of the array.
    start, stop
        Elements of the buffer that hold it.
    integer
        In the int32 buffer, not the float32 one.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    integer: bool


@dataclass(frozen=True)
class Program:
    """What the kernels need to know of a spec; see :mod:`rerank_features.compiler` for the columns.

    Attributes
    ----------
    kinds
        Event kinds that a feature uses, with their column in ``counter_kinds`` and ``sequence_kinds``; the
        last column stands for every other kind.
    gap_ms
        Longest pause inside a session, or -1 when no feature has a session window.
    limits
        (3,) int64: most slots and most pool cells that one event may take; most slots in all.
    slot_columns
        Key values of a candidate, over all keys.
    item_columns
        Item field to (first column, width) in the state's ``items``.
    matches
        For each feature that compares words of the request with an item's: context field, item field, most words.
    """

    kinds: dict[str, int]
    gap_ms: int
    limits: Ints
    keys: Ints
    counters: Ints
    counter_kinds: NDArray[np.uint8]
    counter_bounds: NDArray[np.float64]
    windows: Ints
    features: Ints
    feature_numbers: NDArray[np.float64]
    ids: Ints
    id_width: int
    vocabulary: Ints
    sequences: Ints
    sequence_ids: Ints
    sequence_columns: Ints
    sequence_kinds: NDArray[np.uint8]
    entry_count: int
    slot_columns: int
    slot_width: int
    item_columns: dict[str, tuple[int, int]]
    item_width: int
    segments: tuple[Segment, ...]
    buffer_sizes: tuple[int, int]
    matches: tuple[tuple[str, str, int], ...]

    @property
    def other_kind(self) -> int:
        """Number of every kind that no feature names, -1 where such events change nothing."""
        return len(self.kinds) if self.gap_ms >= 0 else -1

    def kind_number(self, kind: str) -> int:
        """Number of a kind, -1 where its events change nothing."""
        return self.kinds.get(kind, self.other_kind)


def compile_spec(spec: FeatureSpec) -> Program:
    """Turn a spec into descriptor tables.

    Features that count the same events under the same key share a counter, and its windows share a block.

    Examples
    --------
    >>> from rerank_features.spec import Count, FeatureSpec
    >>> hour = Count(name="hour", key="item", kinds=["click"], window=3600)
    >>> ever = Count(name="ever", key="item", kinds=["click"], window="ever")
    >>> program = compile_spec(FeatureSpec(name="feed", dense=[hour, ever]))
    >>> program.counters.shape[0], program.windows.shape[0], program.kinds
    (1, 2, {'click': 0})
    """
    item_columns = _item_columns(spec)
    counters = _Counters(spec, item_columns)
    kinds = {kind: number for number, kind in enumerate(used_kinds(spec))}
    tables = counters.tables(spec.max_counters)
    writer = _FeatureWriter(spec, item_columns, counters, kinds)
    rows = [writer.row(feature) for feature in spec.dense]
    ids, id_width, vocabulary = _ids(spec, item_columns)
    sequences, sequence_ids, sequence_columns, segments, sizes = _sequences(spec, item_columns, kinds)
    has_session = bool((tables.windows[:, code.WINDOW_TYPE] == code.SESSION).any()) or any(
        isinstance(feature, OfHistory) and feature.window == "session" for feature in spec.dense
    )
    last_column, last_width = max(item_columns.values())
    return Program(
        kinds=kinds,
        gap_ms=milliseconds(spec.session_gap_s) if has_session else -1,
        limits=tables.limits,
        keys=tables.keys,
        counters=tables.counters,
        counter_kinds=_kind_places([name[2] for name in counters.ordered], kinds),
        counter_bounds=np.array([name[3] for name in counters.ordered], np.float64).reshape(-1, 2),
        windows=tables.windows,
        features=_table([row[0] for row in rows], code.FEATURE_CELLS),
        feature_numbers=np.array([row[1] for row in rows], np.float64).reshape(len(rows), code.FEATURE_NUMBERS),
        ids=ids,
        id_width=id_width,
        vocabulary=vocabulary,
        sequences=sequences,
        sequence_ids=sequence_ids,
        sequence_columns=sequence_columns,
        sequence_kinds=_kind_places([sequence.kinds for sequence in spec.sequences], kinds),
        entry_count=sum(sequence.length for sequence in spec.sequences),
        slot_columns=int(tables.keys[:, code.KEY_WIDTH].sum()),
        slot_width=code.SLOT_COUNTERS + 2 * tables.widest_key,
        item_columns=item_columns,
        item_width=max(last_column + last_width, code.ITEM_FIELDS),
        segments=segments,
        buffer_sizes=sizes,
        matches=tuple(writer.matches),
    )


def _item_columns(spec: FeatureSpec) -> dict[str, tuple[int, int]]:
    columns = {"item": (code.ITEM_KEY, 1)}
    at = code.ITEM_FIELDS
    for field in spec.items.categorical:
        columns[field] = (at, 1)
        at += 1
    for field, width in several_values(spec).items():
        columns[field] = (at, width)
        at += width
    return columns


def _table(rows: list[list[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def _kind_places(used: list[tuple[str, ...]], kinds: dict[str, int]) -> NDArray[np.uint8]:
    """One plus the place of a kind among those of each row, 0 for a kind that is not among them."""
    matrix = np.zeros((len(used), len(kinds) + 1), np.uint8)
    for row, names in enumerate(used):
        for place, name in enumerate(names):
            matrix[row, kinds[name]] = 1 + place
    return matrix


@dataclass(frozen=True)
class _CounterTables:
    keys: Ints
    counters: Ints
    windows: Ints
    limits: Ints
    widest_key: int


class _Counters:
    """The distinct counters of the spec, each with its distinct windows, ordered by key and scope."""

    def __init__(self, spec: FeatureSpec, item_columns: dict[str, tuple[int, int]]) -> None:
        self.item_columns = item_columns
        self.windows: dict[CounterName, list[Window]] = {}
        self.summed: set[tuple[CounterName, Window]] = set()
        for feature in spec.dense:
            if not isinstance(feature, Keyed):
                continue
            name = self._declare(feature, feature.kinds, getattr(feature, "window", None))
            if isinstance(feature, Rate):
                self._declare(feature, feature.of, feature.window)
            elif isinstance(feature, MeanValue) or (isinstance(feature, Count) and feature.weight == "value"):
                self.summed.add((name, feature.window))
        self.key_names = list(dict.fromkeys(name[:2] for name in self.windows))
        self.ordered = [name for key in self.key_names for name in self.windows if name[:2] == key]

    def _declare(self, feature: Keyed, kinds: tuple[str, ...], window: Window | None) -> CounterName:
        name = _counter_name(feature, kinds)
        windows = self.windows.setdefault(name, [])
        if window is not None and window not in windows:
            windows.append(window)
        return name

    def tables(self, max_counters: int) -> _CounterTables:
        keys: list[list[int]] = []
        counters: list[list[int]] = []
        windows: list[list[int]] = []
        slot_column = cells = 0
        for key in self.key_names:
            column, width = (code.USER_KEY, 1) if key[0] == USER_KEY else self.item_columns[key[0]]
            first = len(counters)
            for name in self.ordered:
                if name[:2] != key:
                    continue
                begin, offset = len(windows), 0
                for window in self.windows[name]:
                    has_sums = (name, window) in self.summed
                    kind, width_ms = _window_type(window)
                    windows.append([kind, width_ms, offset, len(keys), len(counters) - first, int(has_sums)])
                    offset += _block_cells(kind, has_sums)
                counters.append([begin, len(windows), offset, len(counters) - first])
                cells += offset * width
            keys.append([column, width, first, len(counters), slot_column, int(key[1] == "everyone")])
            slot_column += width
        return _CounterTables(
            keys=_table(keys, 6),
            counters=_table(counters, 4),
            windows=_table(windows, 6),
            limits=np.array([slot_column, cells, max(max_counters, slot_column)], np.int64),
            widest_key=max((key[code.KEY_END_COUNTER] - key[code.KEY_FIRST_COUNTER] for key in keys), default=0),
        )

    def place(self, feature: Keyed, kinds: tuple[str, ...], window: Window | None) -> tuple[int, int, int]:
        """(key, counter within the key, window) as the feature table has them."""
        wanted = _counter_name(feature, kinds)
        counter = self.ordered.index(wanted)
        local = counter - [name[:2] for name in self.ordered].index(wanted[:2])
        before = sum(len(self.windows[other]) for other in self.ordered[:counter])
        at = before + self.windows[wanted].index(window) if window is not None else -1
        return self.key_names.index(wanted[:2]), local, at


def _counter_name(feature: Keyed, kinds: tuple[str, ...]) -> CounterName:
    return feature.key, feature.scope, tuple(sorted(kinds)), feature.bounds


def _block_cells(kind: int, has_sums: bool) -> int:
    """Cells that a window takes in a block of the pool."""
    if kind == code.EVER:
        return 1 + has_sums
    if kind == code.SESSION:
        return (2 + has_sums) * code.BUCKETS
    return code.RING_SUMS + (code.BUCKETS if has_sums else 0)


def _window_type(window: Window) -> tuple[int, int]:
    if isinstance(window, str):
        return (code.SESSION if window == "session" else code.EVER), 0
    if isinstance(window, Decay):
        return code.DECAY, max(1, math.ceil(round(window.half_life_s * 1000, 6) / code.BUCKETS_A_HALF_LIFE))
    return code.FIXED, window_width_ms(window)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded down, but for the last bits of a product.

    >>> milliseconds(0.001), milliseconds(1.0005)
    (1, 1000)
    """
    return math.floor(round(seconds * 1000, 6))


def window_width_ms(window_s: float) -> int:
    """Width of one of a window's 16 buckets: a fifteenth of the window, rounded up to milliseconds.

    Examples
    --------
    >>> window_width_ms(3600.0), window_width_ms(0.001)
    (240000, 1)
    """
    return max(1, math.ceil(round(window_s * 1000, 6) / (code.BUCKETS - 1)))


class _FeatureWriter:
    """Rows of the feature table."""

    def __init__(
        self,
        spec: FeatureSpec,
        item_columns: dict[str, tuple[int, int]],
        counters: _Counters,
        kinds: dict[str, int],
    ) -> None:
        self._spec, self._columns, self._counters, self._kinds = spec, item_columns, counters, kinds
        self._sequences = {sequence.name: (i, sequence) for i, sequence in enumerate(spec.sequences)}
        self.matches: list[tuple[str, str, int]] = []
        self._match_words = 0

    def row(self, feature: DenseFeature) -> tuple[list[int], list[float]]:
        """Integers and numbers of one feature."""
        ints, numbers = [0] * code.FEATURE_CELLS, [0.0] * code.FEATURE_NUMBERS
        ints[code.TRANSFORM] = _TRANSFORMS[feature.transform]
        numbers[code.MEAN] = feature.mean or 0.0
        numbers[code.SCALE] = 1.0 if feature.scale is None else feature.scale
        if isinstance(feature, Keyed):
            self._keyed(feature, ints, numbers)
        elif isinstance(feature, OfHistory):
            self._history(feature, ints, numbers)
        else:
            self._plain(feature, ints, numbers)
        return ints, numbers

    def _plain(self, feature: DenseFeature, ints: list[int], numbers: list[float]) -> None:
        items, context = self._spec.items, self._spec.context
        if isinstance(feature, ServerScore | ServerRank):
            ints[code.OP] = code.SERVER_SCORE if isinstance(feature, ServerScore) else code.SERVER_RANK
        elif isinstance(feature, ItemNumeric | ItemAge):
            ints[code.OP] = code.ITEM_NUMBER if isinstance(feature, ItemNumeric) else code.ITEM_AGE
            ints[code.FIELD] = code.ITEM_NUMERIC + items.numeric.index(feature.field)
            if isinstance(feature, ItemNumeric):
                numbers[code.PRIOR_VALUE] = feature.default
            else:
                numbers[code.CAP] = feature.cap_s
        elif isinstance(feature, ContextNumeric):
            ints[code.OP] = code.CONTEXT_NUMBER
            ints[code.FIELD] = context.numeric.index(feature.field)
            numbers[code.PRIOR_VALUE] = feature.default
        elif isinstance(feature, Similarity):
            ints[code.OP] = code.SIMILARITY
            ints[code.FIELD] = self._sequences[feature.sequence][0]
            ints[code.REDUCE] = _REDUCES[feature.reduce]
            ints[code.METRIC] = _METRICS[feature.metric]
            ints[code.WEIGHTED] = int(feature.weighted)
        elif isinstance(feature, ListSize):
            ints[code.OP] = code.LIST_SIZE
        elif isinstance(feature, ListShare):
            ints[code.OP] = code.LIST_SHARE
            ints[code.FIELD], ints[code.WIDTH] = self._columns[feature.field]
        elif isinstance(feature, LocalTime):
            ints[code.OP], ints[code.REDUCE] = code.LOCAL_TIME, _PARTS_OF_TIME[feature.part]
            ints[code.FIELD] = -1 if feature.offset is None else context.numeric.index(feature.offset)
        else:
            assert isinstance(feature, ContextMatch)
            width = context.text.get(feature.context, 1)
            ints[code.OP] = code.CONTEXT_MATCH
            ints[code.FIELD], ints[code.WIDTH] = self._columns[feature.field]
            ints[code.COUNTER_A], ints[code.COUNTER_B] = self._match_words, width
            self._match_words += width
            self.matches.append((feature.context, feature.field, width))

    def _keyed(self, feature: Keyed, ints: list[int], numbers: list[float]) -> None:
        window = getattr(feature, "window", None)
        place = self._counters.place(feature, feature.kinds, window)
        ints[code.FEATURE_KEY], ints[code.COUNTER_A], ints[code.WINDOW_A] = place
        if isinstance(feature, TimeSince):
            ints[code.OP], ints[code.REDUCE] = code.TIME_SINCE, code.MIN_OF
            numbers[code.CAP] = feature.cap_s
        elif isinstance(feature, Count):
            ints[code.OP] = code.COUNT_ONES if feature.weight == "one" else code.COUNT_VALUES
            ints[code.REDUCE] = _REDUCES[feature.reduce or "sum"]
        elif isinstance(feature, Rate):
            ints[code.OP], ints[code.REDUCE] = code.RATE, _REDUCES[feature.reduce or "mean"]
            _, ints[code.COUNTER_B], ints[code.WINDOW_B] = self._counters.place(feature, feature.of, feature.window)
            numbers[code.PRIOR], numbers[code.PRIOR_VALUE] = feature.prior, feature.prior_rate
        else:
            assert isinstance(feature, MeanValue)
            ints[code.OP], ints[code.REDUCE] = code.MEAN_VALUE, _REDUCES[feature.reduce or "mean"]
            numbers[code.PRIOR], numbers[code.PRIOR_VALUE] = feature.prior, feature.prior_value

    def _history(self, feature: OfHistory, ints: list[int], numbers: list[float]) -> None:
        ints[code.SEQUENCE], sequence = self._sequences[feature.sequence]
        ints[code.KIND_SET] = kind_set(feature.kinds or sequence.kinds, self._kinds)
        if isinstance(feature.window, str):
            ints[code.RECENT_MS] = code.RECENT_SESSION if feature.window == "session" else code.RECENT_EVER
        else:
            ints[code.RECENT_MS] = milliseconds(feature.window)
        if isinstance(feature, HistoryCount):
            ints[code.OP] = code.HISTORY_COUNT
        elif isinstance(feature, HistoryDistinct):
            ints[code.OP] = code.HISTORY_DISTINCT
            ints[code.FIELD], ints[code.WIDTH] = self._columns[feature.field]
        elif isinstance(feature, HistoryStreak):
            ints[code.OP] = code.HISTORY_STREAK
            ints[code.UNTIL_SET] = kind_set(feature.until, self._kinds)
            if feature.field is not None:
                ints[code.FIELD], ints[code.WIDTH] = self._columns[feature.field]
        elif isinstance(feature, HistoryMatch):
            ints[code.OP], ints[code.REDUCE] = code.HISTORY_MATCH, _REDUCES[feature.reduce]
            ints[code.FIELD], ints[code.WIDTH] = self._columns[feature.field]
            numbers[code.CAP] = feature.cap
        else:
            assert isinstance(feature, HistoryNumber)
            ints[code.OP], ints[code.REDUCE] = code.HISTORY_NUMBER, _REDUCES[feature.reduce]
            ints[code.AGAINST] = _AGAINST[feature.against]
            if feature.number in ENTRY_NUMBERS:
                ints[code.FIELD] = code.NUMBER_VALUE - ENTRY_NUMBERS.index(feature.number)
            else:
                ints[code.FIELD] = code.ITEM_NUMERIC + self._spec.items.numeric.index(feature.number)
            numbers[code.PRIOR_VALUE] = feature.default


def kind_set(names: Iterable[str], kinds: dict[str, int]) -> int:
    """A set of kinds as one integer, a bit for each."""
    return sum(1 << kinds[name] for name in names)


def _ids(spec: FeatureSpec, item_columns: dict[str, tuple[int, int]]) -> tuple[Ints, int, Ints]:
    rows: list[list[int]] = []
    words: list[list[int]] = []
    out = 0
    for feature in spec.ids:
        first = len(words)
        words += _vocabulary(feature)
        is_of_item = feature.field in item_columns
        column, kept = item_columns.get(feature.field, (-1, 1))
        width = (feature.width or kept) if is_of_item else 1
        if not is_of_item:
            column = spec.context.categorical.index(feature.field)
        rows.append([int(not is_of_item), column, width, feature.buckets or 0, out, first, len(words)])
        out += width
    return _table(rows, 7), out, _table(words, 2)


def _vocabulary(feature: IdFeature) -> list[list[int]]:
    """Hash and row of each word, by hash. Of two words with one hash the first has the row."""
    rows: dict[int, int] = {}
    for place, word in enumerate(feature.vocabulary or ()):
        rows.setdefault(signed_hash(feature.field, word), place + 2)
    return [[word, rows[word]] for word in sorted(rows)]


def _sequences(
    spec: FeatureSpec, item_columns: dict[str, tuple[int, int]], kinds: dict[str, int]
) -> tuple[Ints, Ints, Ints, tuple[Segment, ...], tuple[int, int]]:
    """Descriptors, id columns, dense columns, where each array lies in the buffers, and their sizes: int32, float32."""
    rows: list[list[int]] = []
    id_rows: list[list[int]] = []
    columns: list[list[int]] = []
    segments: list[Segment] = []
    sizes = {True: 0, False: 0}
    entry = 0
    numbers = {sequence.name: number for number, sequence in enumerate(spec.sequences)}

    def reserve(name: str, shape: tuple[int, ...], integer: bool = False) -> int:
        start = sizes[integer]
        stop = start + math.prod(shape)
        segments.append(Segment(name, shape, start, stop, integer))
        sizes[integer] = -(-stop // 16) * 16  # each array begins at a multiple of 64 bytes
        return start

    for number, sequence in enumerate(spec.sequences):
        name, length, first_id, first_column = sequence.name, sequence.length, len(id_rows), len(columns)
        for part in sequence.ids:
            column = code.ID_OF_KIND if part.field == KIND_FIELD else item_columns[part.field][0]
            id_rows.append([column, part.buckets])
        columns += [[_COLUMNS[column], 0, 0, 0] for column in sequence.columns]
        for action in sequence.actions:
            other = spec.sequences[numbers[action.sequence]]
            accepted = kind_set(action.kinds or other.kinds, kinds)
            within_ms = milliseconds(action.within_s)
            columns.append([_ACTIONS[action.reduce], numbers[action.sequence], accepted, within_ms])
        shown = sequence.emit
        ids_at = reserve(f"{name}_ids", (length, len(sequence.ids)), True) if shown and sequence.ids else -1
        embedding_shape = (length, spec.items.embedding_dim)
        embedding_at = reserve(f"{name}_embedding", embedding_shape) if shown and sequence.embedding else -1
        dense_at = reserve(f"{name}_dense", (length, sequence.dense_width)) if shown and sequence.dense else -1
        mask_at = reserve(f"{name}_mask", (length,)) if shown else -1
        user_column = code.USER_SEQUENCES + 2 * number
        rows.append(
            [
                entry,
                length,
                first_id,
                len(id_rows),
                first_column,
                len(columns),
                ids_at,
                embedding_at,
                dense_at,
                mask_at,
                user_column,
            ]
        )
        entry += length
    return (
        _table(rows, code.SEQUENCE_CELLS),
        _table(id_rows, 2),
        _table(columns, code.COLUMN_CELLS),
        tuple(segments),
        (sizes[True], sizes[False]),
    )
