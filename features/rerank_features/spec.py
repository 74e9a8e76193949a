"""The declarative spec: what items and contexts carry, and which arrays a request becomes.

A spec is a value: frozen, checked once when it is made, the same in TOML and in Python, with a content hash
that binds a model to the features it was trained on.

>>> from rerank_features import FeatureSpec
>>> spec = FeatureSpec.from_toml('''
... name = "feed"
... [items]
... categorical = ["language"]
... [[dense]]
... kind = "count"
... name = "clicks_in_language_1d"
... key = "language"
... kinds = ["click"]
... window = 86400
... ''')
>>> spec.dense[0].name, spec == FeatureSpec.from_toml(spec.to_toml())
('clicks_in_language_1d', True)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

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
    ListShare,
    ListSize,
    LocalTime,
    MeanValue,
    Rate,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)
from rerank_features.parts import (
    MAX_WINDOW_S,
    USER_KEY,
    Buckets,
    Decay,
    FieldName,
    Fields,
    Flag,
    Kinds,
    Label,
    Part,
    Positive,
    canonical_hash,
    distinct,
)
from rerank_features.spec_check import check_spec
from rerank_features.toml_text import read_toml, toml_text

__all__ = [
    "USER_KEY",
    "ContextFields",
    "ContextMatch",
    "ContextNumeric",
    "Count",
    "Decay",
    "DenseFeature",
    "FeatureSpec",
    "HistoryCount",
    "HistoryDistinct",
    "HistoryMatch",
    "HistoryNumber",
    "HistoryStreak",
    "IdFeature",
    "ItemAge",
    "ItemFields",
    "ItemNumeric",
    "ListShare",
    "ListSize",
    "LocalTime",
    "MeanValue",
    "Rate",
    "SequenceAction",
    "SequenceFeature",
    "SequenceId",
    "ServerRank",
    "ServerScore",
    "Similarity",
    "TimeSince",
]


class ItemFields(Part):
    """What the pipeline remembers of an item; fields that are not declared are ignored.

    Attributes
    ----------
    categorical
        Fields with one word.
    multi_categorical
        Fields with several words, and how many different ones are kept for an item: the first so many.
    numeric
        Fields with a number.
    text
        Categorical fields that hold a text, and how many different words of it are kept: the first so many, in lower
        case, cut at everything that is no letter or digit. Where a field is asked for, the words are its values.
    embedding_dim
        Length of the embedding, 0 when items have none.

    Examples
    --------
    >>> ItemFields(categorical=["language"], multi_categorical={"genres": 4}).numeric
    ()
    """

    categorical: Fields = ()
    multi_categorical: dict[FieldName, Annotated[int, Field(strict=True, ge=1, le=1024)]] = Field(default_factory=dict)
    numeric: Fields = ()
    text: dict[FieldName, Annotated[int, Field(strict=True, ge=1, le=1024)]] = Field(default_factory=dict)
    embedding_dim: Annotated[int, Field(strict=True, ge=0, le=65536)] = 0


class ContextFields(Part):
    """What the pipeline reads from ``Request.context``; other facts are ignored.

    Attributes
    ----------
    numeric, categorical
        Fields with a number, and with one word.
    text
        Fields that hold a text, and how many different words of it are read, as in :class:`ItemFields`.

    Examples
    --------
    >>> ContextFields(numeric=["hour"], categorical=["device"]).categorical
    ('device',)
    """

    numeric: Fields = ()
    categorical: Fields = ()
    text: dict[FieldName, Annotated[int, Field(strict=True, ge=1, le=1024)]] = Field(default_factory=dict)


class IdFeature(Part):
    """Columns of the array ``ids``: :func:`~rerank_features.hashing.bucket` of the value, 0 for missing.

    Attributes
    ----------
    field
        ``item``, an item's categorical or multi-categorical field, or a categorical field of the context.
    buckets
        Size of the embedding table, the row of "missing" included. Left out with a vocabulary.
    vocabulary
        The words that have a row of their own: row 2 for the first, and so on; row 1 is every other word's.
    width
        Number of columns of a multi-categorical field; as many as values are kept when left out.

    Examples
    --------
    >>> IdFeature(name="language", field="language", buckets=100).width is None
    True
    >>> IdFeature(name="device", field="device", vocabulary=["phone", "tablet"]).rows
    4
    """

    name: Label
    field: str
    buckets: Buckets | None = None
    vocabulary: tuple[str, ...] | None = None
    width: Annotated[int, Field(strict=True, ge=1)] | None = None

    @model_validator(mode="after")
    def _size(self) -> IdFeature:
        if (self.buckets is None) == (self.vocabulary is None):
            raise ValueError("give buckets for hashing, or a vocabulary; one of them")
        if self.vocabulary is not None and len(set(self.vocabulary)) != len(self.vocabulary):
            raise ValueError("a word is in the vocabulary twice; drop one of them")
        return self

    @property
    def rows(self) -> int:
        """Rows that the embedding table needs."""
        return self.buckets if self.buckets is not None else len(self.vocabulary or ()) + 2


class SequenceId(Part):
    """A column of a sequence's ids: ``item`` or an item field; of several values the first.

    ``kind`` is the kind of the event: 1 for the first of the sequence's kinds; its buckets must be one more than these.

    Examples
    --------
    >>> SequenceId(field="item", buckets=1000).buckets
    1000
    """

    field: str
    buckets: Buckets


SequenceColumn = Literal["value", "log_value", "log_age_s", "log_gap_s", "log_position"]


class SequenceAction(Part):
    """What followed an entry: later events of the same item, from another sequence, as one more column of ``dense``.

    Attributes
    ----------
    sequence
        Where the events are looked for: among its entries.
    kinds
        Which of them; all of the sequence's kinds when left out.
    within_s
        Not later than so many seconds after the entry, and before the next entry of the same item.
    reduce
        ``count``, ``value_sum``, or ``log_delay_s``: log(1 + seconds to the first of them), 0 where there is none.

    Examples
    --------
    >>> SequenceAction(sequence="actions", kinds=["dwell"], within_s=600, reduce="value_sum").reduce
    'value_sum'
    """

    sequence: Label
    kinds: Kinds | None = None
    within_s: Positive
    reduce: Literal["count", "value_sum", "log_delay_s"] = "count"


class SequenceFeature(Part):
    """The user's last events of some kinds, newest first, padded with zeros.

    Attributes
    ----------
    name
        Prefix of the arrays: ``<name>_ids`` (T, len(ids)) int32, ``<name>_embedding`` (T, E) float32,
        ``<name>_dense`` (T, D) float32, and ``<name>_mask`` (T,) float32, 1 for an event and 0 for padding.
    kinds
        Which events.
    length
        T.
    ids, embedding
        Which arrays are emitted besides the mask.
    dense
        Emit ``<name>_dense``: the columns, then the actions.
    columns
        ``value`` of the event (0 for none), ``log_value``: sign(v) log(1 + abs(v)), ``log_age_s``: log(1 + age in
        seconds), ``log_gap_s``: the same of the seconds since the entry before it (0 for the oldest),
        ``log_position``: log(2 + position), 0 where the event has none.
    actions
        What followed each entry.
    emit
        Whether there are arrays at all; a sequence that only other features read needs none.

    Examples
    --------
    >>> SequenceFeature(name="clicks", kinds=["click"], length=50, dense=True).columns
    ('value', 'log_age_s')
    """

    name: Label
    kinds: Kinds
    length: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    ids: tuple[SequenceId, ...] = ()
    embedding: Flag = False
    dense: Flag = False
    columns: Annotated[tuple[SequenceColumn, ...], AfterValidator(distinct)] = ("value", "log_age_s")
    actions: tuple[SequenceAction, ...] = ()
    emit: Flag = True

    @property
    def dense_width(self) -> int:
        """D."""
        return len(self.columns) + len(self.actions)


class FeatureSpec(Part):
    """Which arrays a request becomes, and from what.

    Attributes
    ----------
    name
        Of the spec.
    session_gap_s
        A session of a user ends when the next event comes later than this many seconds after it; events of
        every kind keep a session alive. At a request that comes later than this after the user's newest
        event, the current session is empty.
    max_users, max_items
        Remembered at most; the least recently used go first.
    max_counters
        Values of keys that are counted at most, over all users: one for each user and item, for example. Beyond that
        the value whose last event came in longest ago is given up, and counts from nothing when it comes again.
    items, context
        What items and requests carry.
    dense
        Columns of ``dense`` (N, F) float32.
    ids
        Columns of ``ids`` (N, C) int32.
    embedding
        Emit ``embedding`` (N, E) float32, zeros for an item without one.
    sequences
        The user's last events.

    Raises
    ------
    SpecError
        A feature names something that is not declared, two features share a name, or an option is unknown or
        out of range; the message names feature, field and the way out.

    Examples
    --------
    >>> clicks = Count(name="clicks", key="user", kinds=["click"], window="session")
    >>> FeatureSpec(name="feed", dense=[clicks]).content_hash()[:12]
    'd7613d29672b'
    >>> FeatureSpec(name="feed", dense=[{"kind": "item_numeric", "name": "price", "field": "price"}])
    Traceback (most recent call last):
    ...
    rerank_engine.errors.SpecError: feature 'price': field 'price' is not declared under items.numeric \
(declared: nothing); declare it there, or correct the name
    """

    name: Label
    session_gap_s: Annotated[float, Field(strict=True, gt=0, le=MAX_WINDOW_S)] = 1800.0
    max_users: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] = 10_000
    max_items: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] = 100_000
    max_counters: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] = 1_000_000
    embedding: Flag = False
    items: ItemFields = ItemFields()
    context: ContextFields = ContextFields()
    dense: tuple[Annotated[DenseFeature, Field(discriminator="kind")], ...] = ()
    ids: tuple[IdFeature, ...] = ()
    sequences: tuple[SequenceFeature, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSpec:
        check_spec(self)
        return self

    @classmethod
    def from_toml(cls, source: str | Path) -> FeatureSpec:
        """Read a spec from TOML.

        Parameters
        ----------
        source
            A path, or the text itself: a string with an equals sign or a line break is text.

        Raises
        ------
        SpecError
            The file cannot be read, is no TOML, or is no valid spec.

        Examples
        --------
        >>> FeatureSpec.from_toml('name = "feed"').session_gap_s
        1800.0
        """
        return cls(**read_toml(source, "the feature spec"))

    def to_toml(self) -> str:
        """Write the spec as TOML: every option, also the defaults, in a fixed order.

        Examples
        --------
        >>> print(FeatureSpec(name="feed").to_toml().splitlines()[0])
        name = "feed"
        """
        return toml_text(self.model_dump(exclude_none=True))

    def content_hash(self) -> str:
        """SHA-256 of the spec's canonical JSON, in hexadecimal: equal for specs that are equal.

        Examples
        --------
        >>> FeatureSpec(name="a").content_hash() == FeatureSpec.from_toml('name = "a"').content_hash()
        True
        """
        return canonical_hash(self)
