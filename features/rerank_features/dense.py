"""The kinds of columns of ``dense``: facts, counters, what the user did last, this list."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator

from rerank_features.parts import (
    FieldName,
    Flag,
    Kinds,
    Label,
    NotNegative,
    Number,
    Part,
    Positive,
    Recent,
    Reduce,
    Transform,
    Window,
)


class _Dense(Part):
    """One column of the array ``dense``.

    Attributes
    ----------
    name
        Name of the column.
    transform
        Applied to the finished column ``x``: ``none``; ``log1p``, sign(x) log(1 + abs(x)); ``standardize``,
        minus the mean and divided by the population standard deviation of this list, all 0 where that is 0
        (or at most 1e-9 of the largest magnitude); ``reciprocal``, 1 / (1 + abs(x)); ``affine``,
        (x - mean) / scale. Against this list: ``list_rank``, the share of the other candidates whose x is larger
        (ties count half); ``minus_median``, ``minus_mean``; ``minus_previous``, less the candidate before it in the
        server's order, 0 for the first; ``minmax``, (x - min) / (max - min), all 0 where these are equal.
    mean, scale
        Of ``affine`` only; 0 and 1 when left out.
    group
        Label under which the column counts when reasons are reported; the name when left out.
    """

    name: Label
    transform: Transform = "none"
    mean: Number | None = None
    scale: Number | None = None
    group: Label | None = None

    @model_validator(mode="after")
    def _affine(self) -> _Dense:
        if self.transform != "affine" and (self.mean is not None or self.scale is not None):
            raise ValueError(f"mean and scale belong to transform = 'affine', got {self.transform!r}; drop them")
        if self.scale is not None and abs(self.scale) < 1e-30:
            raise ValueError(f"scale must be at least 1e-30 in magnitude, got {self.scale}; it divides")
        return self

    @property
    def label(self) -> str:
        """The group, or the name when there is none."""
        return self.name if self.group is None else self.group


class ServerScore(_Dense):
    """The server's score of the candidate; 0 when the request has none."""

    kind: Literal["server_score"] = "server_score"


class ServerRank(_Dense):
    """The candidate's place in the server's order, from 0."""

    kind: Literal["server_rank"] = "server_rank"


class ItemNumeric(_Dense):
    """A number of the item; ``default`` when the item has none."""

    kind: Literal["item_numeric"] = "item_numeric"
    field: FieldName
    default: Number = 0.0


class ContextNumeric(_Dense):
    """A number of the request's context; ``default`` when the context has none."""

    kind: Literal["context_numeric"] = "context_numeric"
    field: FieldName
    default: Number = 0.0


class Keyed(_Dense):
    """A feature over the user's events that share a key with the candidate.

    Attributes
    ----------
    key
        ``user``: all the user's events; ``item``: those with the candidate; or a categorical,
        multi-categorical or text item field: those with items of the same value. With several values an
        event counts once for each value of its item, and the feature is reduced over the candidate's values.
    kinds
        Which events.
    scope
        ``user``: only the user's own events; ``everyone``: those of all users that this state has seen, as of the
        newest of them where that is later than the request. What a
        user added to everyone's counters stays there when the user is forgotten or pushed out: a number that names
        nobody.
    min_value, max_value
        Only events whose value (0 for none) lies between them: fast scrolls, long dwells.
    """

    key: str
    kinds: Kinds
    scope: Literal["user", "everyone"] = "user"
    min_value: Number | None = None
    max_value: Number | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Keyed:
        least, most = self.bounds
        if least > most:
            raise ValueError(f"min_value {least} is above max_value {most}; exchange them")
        if self.scope == "everyone" and getattr(self, "window", None) == "session":
            raise ValueError("window = 'session' is one user's, but scope = 'everyone'; give seconds or 'ever'")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value of an event that counts."""
        least = -math.inf if self.min_value is None else self.min_value
        return least, math.inf if self.max_value is None else self.max_value


class Count(Keyed):
    """Number of the user's events within the window.

    Attributes
    ----------
    window
        Seconds, ``session``, ``ever`` or a :class:`~rerank_features.parts.Decay`. A window of W seconds is kept in
        16 buckets whose width is W/15 rounded up to milliseconds: it covers the events of at least the last W
        seconds and of at most 16 widths, which is W (1 + 1/15) but for the rounding.
        ``session``: the user's current session, see ``FeatureSpec.session_gap_s``.
    weight
        ``one`` counts events; ``value`` sums their values, where an event without one adds 0. Values are
        summed in whole multiples of 2**-20, clipped to 2**31 in magnitude, so that a sum does not depend on
        the order; a bucket's sum saturates at 2**38.
    reduce
        Over the values of a multi-categorical key: ``sum`` (the default), ``mean`` or ``max``; 0 over none.

    Examples
    --------
    >>> Count(name="clicks_1h", key="item", kinds=["click"], window=3600).weight
    'one'
    """

    kind: Literal["count"] = "count"
    window: Window
    weight: Literal["one", "value"] = "one"
    reduce: Reduce | None = None


class Rate(Keyed):
    """Smoothed rate: (count(kinds) + prior * prior_rate) / (count(of) + prior), prior_rate for a division by 0.

    Attributes
    ----------
    of
        The events in the denominator.
    window
        As in :class:`Count`.
    prior, prior_rate
        How many events the prior weighs, and its rate.
    reduce
        Over the values of a multi-categorical key: ``mean`` (the default), ``sum`` or ``max``; over none as
        without any event.

    Examples
    --------
    >>> Rate(name="ctr", key="item", kinds=["click"], of=["impression"], window="ever").prior
    1.0
    """

    kind: Literal["rate"] = "rate"
    of: Kinds
    window: Window
    prior: NotNegative = 1.0
    prior_rate: Number = 0.0
    reduce: Reduce | None = None


class MeanValue(Keyed):
    """Smoothed mean: (sum of values + prior * prior_value) / (count + prior), prior_value for a division by 0.

    Attributes
    ----------
    window
        As in :class:`Count`; so are the values' precision and range.
    prior, prior_value
        How many events the prior weighs, and its value.
    reduce
        As in :class:`Rate`.

    Examples
    --------
    >>> MeanValue(name="dwell", key="item", kinds=["dwell"], window="session", prior_value=3).prior_value
    3.0
    """

    kind: Literal["mean_value"] = "mean_value"
    window: Window
    prior: NotNegative = 1.0
    prior_value: Number = 0.0
    reduce: Reduce | None = None


class TimeSince(Keyed):
    """Seconds since the last such event, at most ``cap_s``, which also stands for "never".

    With a multi-categorical key: the shortest over the candidate's values.

    Examples
    --------
    >>> TimeSince(name="idle_s", key="user", kinds=["click"]).cap_s
    2592000.0
    """

    kind: Literal["time_since"] = "time_since"
    cap_s: Positive = 2_592_000.0


class Similarity(_Dense):
    """The candidate's embedding against the embeddings of a sequence; 0 where either side has none.

    Attributes
    ----------
    sequence
        Name of a declared sequence; its entries whose item has an embedding take part.
    reduce
        ``mean`` or ``max`` over the entries, or ``last``: the newest of them alone.
    metric
        ``dot`` or ``cosine``.
    weighted
        Weigh each entry by its event's value v: the mean becomes sum(v s) / sum(abs(v)), 0 where all are 0;
        maximum and last are taken of v s.

    Examples
    --------
    >>> Similarity(name="taste", sequence="clicks").metric
    'cosine'
    """

    kind: Literal["similarity"] = "similarity"
    sequence: Label
    reduce: Literal["mean", "max", "last"] = "mean"
    metric: Literal["dot", "cosine"] = "cosine"
    weighted: Flag = False


class OfHistory(_Dense):
    """A feature over the entries of a declared sequence.

    Attributes
    ----------
    sequence
        Name of the sequence.
    kinds
        Only its entries of these kinds; all of its kinds when left out.
    window
        Only entries of the last so many seconds, of the current ``session``, or ``ever``.
    """

    sequence: Label
    kinds: Kinds | None = None
    window: Recent = "ever"


class HistoryCount(OfHistory):
    """Number of entries: the same for every candidate.

    Examples
    --------
    >>> HistoryCount(name="clicks_10m", sequence="recent", kinds=["click"], window=600).window
    600.0
    """

    kind: Literal["history_count"] = "history_count"


class HistoryDistinct(OfHistory):
    """Number of different values of an item field (or of ``item``) among the entries; several values count each.

    Examples
    --------
    >>> HistoryDistinct(name="categories", sequence="recent", field="category").field
    'category'
    """

    kind: Literal["history_distinct"] = "history_distinct"
    field: str


class HistoryStreak(OfHistory):
    """How many of the newest entries came one after the other without one of ``until``: exposures without a click.

    Attributes
    ----------
    until
        The kinds that end the streak; ``kinds`` are those that count.
    field
        Only entries whose item shares a value of this field with the candidate (``item``: the candidate itself).

    Examples
    --------
    >>> HistoryStreak(name="ignored", sequence="recent", kinds=["impression"], until=["click"]).until
    ('click',)
    """

    kind: Literal["history_streak"] = "history_streak"
    until: Kinds
    field: str | None = None


class HistoryMatch(OfHistory):
    """The candidate against the entries: which of them share a value of a field with it (``item``: are the candidate).

    Attributes
    ----------
    field
        Item field, or ``item``.
    reduce
        ``share`` of the entries whose item is known, ``count``, ``value_sum`` and ``value_mean`` of the matching
        entries' values; ``since_s``: seconds since the newest match, at most and for none ``cap``; ``place``: how many
        entries are newer than it, at most and for none ``cap``.

    Examples
    --------
    >>> HistoryMatch(name="same_category", sequence="clicks", field="category").reduce
    'share'
    """

    kind: Literal["history_match"] = "history_match"
    field: str
    reduce: Literal["share", "count", "value_sum", "value_mean", "since_s", "place"] = "share"
    cap: Positive = 2_592_000.0


class HistoryNumber(OfHistory):
    """A number of the entries, alone or with the candidate's own against it: price against prices clicked.

    Attributes
    ----------
    number
        ``value``, ``age_s``, ``gap_s`` (seconds to the entry before it; not of the oldest), ``position`` (entries
        without one are left out), or a numeric item field (items without it are left out).
    reduce
        ``mean``, ``min``, ``max``, ``sum``, or ``last``: the newest.
    against
        ``none``: the number itself. ``difference``: the candidate's own less the number; ``ratio``: divided by it,
        ``default`` where it is 0. The own number is the item field; with ``position`` the place in the server's order.
    default
        Where there is no entry, or the candidate has no number of its own.

    Examples
    --------
    >>> HistoryNumber(name="price", sequence="clicks", number="price", against="ratio", default=1).reduce
    'mean'
    """

    kind: Literal["history_number"] = "history_number"
    number: str
    reduce: Literal["mean", "min", "max", "sum", "last"] = "mean"
    against: Literal["none", "difference", "ratio"] = "none"
    default: Number = 0.0


class ListSize(_Dense):
    """Number of candidates."""

    kind: Literal["list_size"] = "list_size"


class ListShare(_Dense):
    """Share of the other candidates of this list that share a value of a field with the candidate."""

    kind: Literal["list_share"] = "list_share"
    field: str


class ItemAge(_Dense):
    """Seconds from a time that the item carries to the request, from 0 to ``cap_s``; ``cap_s`` when it has none.

    Attributes
    ----------
    field
        Numeric item field: seconds since 1970, UTC.

    Examples
    --------
    >>> ItemAge(name="age", field="published_s").cap_s
    2592000.0
    """

    kind: Literal["item_age"] = "item_age"
    field: FieldName
    cap_s: Positive = 2_592_000.0


class LocalTime(_Dense):
    """The time of the request on the user's clock.

    Attributes
    ----------
    part
        ``hour`` (0 to 24, with fraction), ``weekday`` (0 for Monday, with fraction), or the sine or cosine of either
        as an angle, in which the last hour is beside the first.
    offset
        Numeric context field: minutes that the user's clock is ahead of UTC, at this moment (summer time included).
        UTC when left out or missing.

    Examples
    --------
    >>> LocalTime(name="hour", part="hour").offset is None
    True
    """

    kind: Literal["local_time"] = "local_time"
    part: Literal["hour", "weekday", "hour_sin", "hour_cos", "weekday_sin", "weekday_cos"]
    offset: FieldName | None = None


class ContextMatch(_Dense):
    """How much the words of request and candidate overlap: shared words divided by all (Jaccard), 0 for none.

    Attributes
    ----------
    field
        Item field.
    context
        Categorical or text field of the context; its words are compared with those of ``field``.

    Examples
    --------
    >>> ContextMatch(name="query_title", field="title", context="query").context
    'query'
    """

    kind: Literal["context_match"] = "context_match"
    field: str
    context: str


DenseFeature = (
    ServerScore
    | ServerRank
    | ItemNumeric
    | ContextNumeric
    | Count
    | Rate
    | MeanValue
    | TimeSince
    | Similarity
    | HistoryCount
    | HistoryDistinct
    | HistoryStreak
    | HistoryMatch
    | HistoryNumber
    | ListSize
    | ListShare
    | ItemAge
    | LocalTime
    | ContextMatch
)
"""Every kind of column."""
