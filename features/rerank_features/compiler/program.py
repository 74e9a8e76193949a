"""A spec as descriptor tables for one set of compiled kernels: a new spec costs no compilation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_features import compiler as code
from rerank_features.spec import (
    USER_KEY,
    ContextNumeric,
    Count,
    DenseFeature,
    FeatureSpec,
    ItemNumeric,
    MeanValue,
    Rate,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)

Ints = NDArray[np.int64]
Window = float | str

_TRANSFORMS = {
    "none": code.NO_TRANSFORM,
    "log1p": code.LOG1P,
    "standardize": code.STANDARDIZE,
    "reciprocal": code.RECIPROCAL,
    "affine": code.AFFINE,
}
_REDUCES = {"sum": code.SUM_OF, "mean": code.MEAN_OF, "max": code.MAX_OF, "last": code.LAST_OF}
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
        (2,) int64: most slots and most pool cells that one event may take.
    slot_columns
        Key values of a candidate, over all keys.
    item_columns
        Item field to (first column, width) in the state's ``items``.
    """

    kinds: dict[str, int]
    gap_ms: int
    limits: Ints
    keys: Ints
    counters: Ints
    counter_kinds: NDArray[np.uint8]
    windows: Ints
    features: Ints
    feature_numbers: NDArray[np.float64]
    ids: Ints
    id_width: int
    sequences: Ints
    sequence_ids: Ints
    sequence_kinds: NDArray[np.uint8]
    entry_count: int
    slot_columns: int
    slot_width: int
    item_columns: dict[str, tuple[int, int]]
    item_width: int
    segments: tuple[Segment, ...]
    buffer_sizes: tuple[int, int]


def compile_spec(spec: FeatureSpec) -> Program:
    """Turn a spec into descriptor tables.

    Features that count the same events under the same key share a counter, and its windows share a block.

    Examples
    --------
    >>> from rerank_features.spec import Count
    >>> hour = Count(name="hour", key="item", kinds=["click"], window=3600)
    >>> ever = Count(name="ever", key="item", kinds=["click"], window="ever")
    >>> program = compile_spec(FeatureSpec(name="feed", dense=[hour, ever]))
    >>> program.counters.shape[0], program.windows.shape[0], program.kinds
    (1, 2, {'click': 0})
    """
    item_columns = _item_columns(spec)
    counters = _Counters(spec, item_columns)
    kinds: dict[str, int] = {}
    for used in [*(kinds for _, kinds in counters.windows), *(sequence.kinds for sequence in spec.sequences)]:
        for kind in used:
            kinds.setdefault(kind, len(kinds))
    tables = counters.tables()
    rows = [_feature(spec, feature, counters) for feature in spec.dense]
    ids, id_width = _ids(spec, item_columns)
    sequences, sequence_ids, segments, sizes = _sequences(spec, item_columns)
    has_session = bool((tables.windows[:, code.WINDOW_TYPE] == code.SESSION).any())
    last_column, last_width = max(item_columns.values())
    return Program(
        kinds=kinds,
        gap_ms=math.floor(round(spec.session_gap_s * 1000, 6)) if has_session else -1,
        limits=tables.limits,
        keys=tables.keys,
        counters=tables.counters,
        counter_kinds=_kind_matrix([set(kinds) for _, kinds in counters.ordered], kinds),
        windows=tables.windows,
        features=_table([row[0] for row in rows], code.WEIGHTED + 1),
        feature_numbers=np.array([row[1] for row in rows], np.float64).reshape(len(rows), code.CAP + 1),
        ids=ids,
        id_width=id_width,
        sequences=sequences,
        sequence_ids=sequence_ids,
        sequence_kinds=_kind_matrix([set(sequence.kinds) for sequence in spec.sequences], kinds),
        entry_count=sum(sequence.length for sequence in spec.sequences),
        slot_columns=int(tables.keys[:, code.KEY_WIDTH].sum()),
        slot_width=code.SLOT_COUNTERS + 2 * tables.widest_key,
        item_columns=item_columns,
        item_width=max(last_column + last_width, code.ITEM_FIELDS),
        segments=segments,
        buffer_sizes=sizes,
    )


def _item_columns(spec: FeatureSpec) -> dict[str, tuple[int, int]]:
    columns = {"item": (code.ITEM_KEY, 1)}
    at = code.ITEM_FIELDS
    for field in spec.items.categorical:
        columns[field] = (at, 1)
        at += 1
    for field, width in spec.items.multi_categorical.items():
        columns[field] = (at, width)
        at += width
    return columns


def _table(rows: list[list[int]], columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def _kind_matrix(used: list[set[str]], kinds: dict[str, int]) -> NDArray[np.uint8]:
    matrix = np.zeros((len(used), len(kinds) + 1), np.uint8)
    for row, names in enumerate(used):
        for name in names:
            matrix[row, kinds[name]] = 1
    return matrix


@dataclass(frozen=True)
class _CounterTables:
    keys: Ints
    counters: Ints
    windows: Ints
    limits: Ints
    widest_key: int


class _Counters:
    """The distinct (key, kinds) of the spec, each with its distinct windows, ordered by key."""

    def __init__(self, spec: FeatureSpec, item_columns: dict[str, tuple[int, int]]) -> None:
        self.item_columns = item_columns
        self.windows: dict[tuple[str, tuple[str, ...]], list[Window]] = {}
        for feature in spec.dense:
            if isinstance(feature, Count | Rate | MeanValue):
                self._declare(feature.key, feature.kinds, feature.window)
            if isinstance(feature, Rate):
                self._declare(feature.key, feature.of, feature.window)
            if isinstance(feature, TimeSince):
                self._declare(feature.key, feature.kinds, None)
        self.key_names = list(dict.fromkeys(key for key, _ in self.windows))
        self.ordered = [counter for key in self.key_names for counter in self.windows if counter[0] == key]

    def _declare(self, key: str, kinds: tuple[str, ...], window: Window | None) -> None:
        windows = self.windows.setdefault((key, tuple(sorted(kinds))), [])
        if window is not None and window not in windows:
            windows.append(window)

    def tables(self) -> _CounterTables:
        keys: list[list[int]] = []
        counters: list[list[int]] = []
        windows: list[list[int]] = []
        slot_column = cells = 0
        for name in self.key_names:
            column, width = (code.USER_KEY, 1) if name == USER_KEY else self.item_columns[name]
            first = len(counters)
            for counter in self.ordered:
                if counter[0] != name:
                    continue
                begin, offset = len(windows), 0
                for window in self.windows[counter]:
                    windows.append([*_window_type(window), offset])
                    offset += 2 if window == "ever" else 3 * code.BUCKETS
                counters.append([begin, len(windows), offset, len(counters) - first])
                cells += offset * width
            keys.append([column, width, first, len(counters), slot_column])
            slot_column += width
        return _CounterTables(
            keys=_table(keys, 5),
            counters=_table(counters, 4),
            windows=_table(windows, 3),
            limits=np.array([slot_column, cells], np.int64),
            widest_key=max((key[code.KEY_END_COUNTER] - key[code.KEY_FIRST_COUNTER] for key in keys), default=0),
        )

    def place(self, key: str, kinds: tuple[str, ...], window: Window | None) -> tuple[int, int, int]:
        """(key, counter within the key, window) as the feature table has them."""
        wanted = (key, tuple(sorted(kinds)))
        counter = self.ordered.index(wanted)
        local = counter - [name for name, _ in self.ordered].index(key)
        before = sum(len(self.windows[other]) for other in self.ordered[:counter])
        at = before + self.windows[wanted].index(window) if window is not None else -1
        return self.key_names.index(key), local, at


def _window_type(window: Window) -> tuple[int, int]:
    if isinstance(window, str):
        return (code.SESSION if window == "session" else code.EVER), 0
    return code.FIXED, window_width_ms(window)


def window_width_ms(window_s: float) -> int:
    """Width of one of a window's 16 buckets: a fifteenth of the window, rounded up to milliseconds.

    Examples
    --------
    >>> window_width_ms(3600.0), window_width_ms(0.001)
    (240000, 1)
    """
    return max(1, math.ceil(round(window_s * 1000, 6) / (code.BUCKETS - 1)))


def _feature(spec: FeatureSpec, feature: DenseFeature, counters: _Counters) -> tuple[list[int], list[float]]:
    ints, numbers = [0] * (code.WEIGHTED + 1), [0.0] * (code.CAP + 1)
    ints[code.TRANSFORM] = _TRANSFORMS[feature.transform]
    numbers[code.MEAN] = feature.mean or 0.0
    numbers[code.SCALE] = 1.0 if feature.scale is None else feature.scale
    if isinstance(feature, ServerScore | ServerRank):
        ints[code.OP] = code.SERVER_SCORE if isinstance(feature, ServerScore) else code.SERVER_RANK
    elif isinstance(feature, ItemNumeric):
        ints[code.OP] = code.ITEM_NUMBER
        ints[code.FIELD] = code.ITEM_NUMERIC + spec.items.numeric.index(feature.field)
        numbers[code.PRIOR_VALUE] = feature.default
    elif isinstance(feature, ContextNumeric):
        ints[code.OP] = code.CONTEXT_NUMBER
        ints[code.FIELD] = spec.context.numeric.index(feature.field)
        numbers[code.PRIOR_VALUE] = feature.default
    elif isinstance(feature, Similarity):
        ints[code.OP] = code.SIMILARITY
        ints[code.FIELD] = [sequence.name for sequence in spec.sequences].index(feature.sequence)
        ints[code.REDUCE] = _REDUCES[feature.reduce]
        ints[code.METRIC] = _METRICS[feature.metric]
        ints[code.WEIGHTED] = int(feature.weighted)
    else:
        window = None if isinstance(feature, TimeSince) else feature.window
        place = counters.place(feature.key, feature.kinds, window)
        ints[code.FEATURE_KEY], ints[code.COUNTER_A], ints[code.WINDOW_A] = place
        if isinstance(feature, TimeSince):
            ints[code.OP], ints[code.REDUCE] = code.TIME_SINCE, code.MIN_OF
            numbers[code.CAP] = feature.cap_s
        elif isinstance(feature, Count):
            ints[code.OP] = code.COUNT_ONES if feature.weight == "one" else code.COUNT_VALUES
            ints[code.REDUCE] = _REDUCES[feature.reduce or "sum"]
        else:
            ints[code.OP] = code.MEAN_VALUE
            ints[code.REDUCE] = _REDUCES[feature.reduce or "mean"]
            numbers[code.PRIOR] = feature.prior
            if isinstance(feature, Rate):
                ints[code.OP] = code.RATE
                place = counters.place(feature.key, feature.of, feature.window)
                _, ints[code.COUNTER_B], ints[code.WINDOW_B] = place
                numbers[code.PRIOR_VALUE] = feature.prior_rate
            else:
                numbers[code.PRIOR_VALUE] = feature.prior_value
    return ints, numbers


def _ids(spec: FeatureSpec, item_columns: dict[str, tuple[int, int]]) -> tuple[Ints, int]:
    rows, out = [], 0
    for feature in spec.ids:
        if feature.field in item_columns:
            column, kept = item_columns[feature.field]
            width = feature.width or kept
            rows.append([0, column, width, feature.buckets, out])
        else:
            width = 1
            rows.append([1, spec.context.categorical.index(feature.field), 1, feature.buckets, out])
        out += width
    return _table(rows, 5), out


def _sequences(
    spec: FeatureSpec, item_columns: dict[str, tuple[int, int]]
) -> tuple[Ints, Ints, tuple[Segment, ...], tuple[int, int]]:
    """Descriptors, id columns, where each array lies in the buffers, and the buffers' sizes: int32, float32."""
    rows: list[list[int]] = []
    id_rows: list[list[int]] = []
    segments: list[Segment] = []
    sizes = {True: 0, False: 0}
    entry = 0

    def reserve(name: str, shape: tuple[int, ...], integer: bool = False) -> int:
        start = sizes[integer]
        stop = start + math.prod(shape)
        segments.append(Segment(name, shape, start, stop, integer))
        sizes[integer] = -(-stop // 16) * 16  # each array begins at a multiple of 64 bytes
        return start

    for number, sequence in enumerate(spec.sequences):
        name, length = sequence.name, sequence.length
        first_id = len(id_rows)
        id_rows += [[item_columns[part.field][0], part.buckets] for part in sequence.ids]
        ids_at = reserve(f"{name}_ids", (length, len(sequence.ids)), True) if sequence.ids else -1
        embedding_at = reserve(f"{name}_embedding", (length, spec.items.embedding_dim)) if sequence.embedding else -1
        dense_at = reserve(f"{name}_dense", (length, 2)) if sequence.dense else -1
        mask_at = reserve(f"{name}_mask", (length,))
        column = code.USER_SEQUENCES + 2 * number
        rows.append([entry, length, first_id, len(id_rows), ids_at, embedding_at, dense_at, mask_at, column])
        entry += length
    return _table(rows, 9), _table(id_rows, 2), tuple(segments), (sizes[True], sizes[False])
