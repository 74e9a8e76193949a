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

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from rerank_engine.errors import SpecError
from rerank_features.events import Kind
from rerank_features.hashing import ITEM_FIELD, MAX_FIELD_BYTES

USER_KEY = "user"
"""The key under which all of a user's events count."""

MAX_WINDOW_S = 3_155_760_000.0
"""Longest window: a hundred years."""

_HINTS = {
    "kinds": "list event kinds, lower-case identifiers such as 'click'",
    "of": "list event kinds, lower-case identifiers such as 'impression'",
    "reduce": "leave it out for the default",
    "buckets": "give a whole number from 2 to 2147483647; id 0 is kept for 'missing'",
    "length": "give how many events to keep, from 1 to 100000",
    "multi_categorical": "give field = most words kept, for example {genres = 4}",
}


def _field_name(name: str) -> str:
    if not 1 <= len(name.encode()) <= MAX_FIELD_BYTES:
        raise ValueError(f"a field name has 1 to {MAX_FIELD_BYTES} bytes of UTF-8, got {name!r}; shorten it")
    if name in (ITEM_FIELD, USER_KEY):
        raise ValueError(f"{name!r} is a reserved word and cannot name a field; rename the field")
    return name


def _label(name: str) -> str:
    if not 1 <= len(name.encode()) <= 128:
        raise ValueError(f"a name has 1 to 128 bytes of UTF-8, got {name!r}; shorten it")
    return name


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} is listed twice; drop one of them")
    return names


def _window(window: object) -> float | str:
    if isinstance(window, str) and window in ("session", "ever"):
        return window
    if isinstance(window, int | float) and not isinstance(window, bool) and 0 < window <= MAX_WINDOW_S:
        return float(window)
    raise ValueError(f"expected seconds above 0 and up to {MAX_WINDOW_S:.0f}, 'session' or 'ever', got {window!r}")


FieldName = Annotated[str, AfterValidator(_field_name)]
Fields = Annotated[tuple[FieldName, ...], AfterValidator(_distinct)]
Label = Annotated[str, AfterValidator(_label)]
Kinds = Annotated[tuple[Kind, ...], Field(min_length=1), AfterValidator(_distinct)]
Window = Annotated[float | Literal["session", "ever"], BeforeValidator(_window)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0)]
NotNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
Buckets = Annotated[int, Field(strict=True, ge=2, le=2**31 - 1)]
Transform = Literal["none", "log1p", "standardize", "reciprocal", "affine"]
Reduce = Literal["sum", "mean", "max"]


class _Part(BaseModel):
    """Common rules: unknown options are refused, values never change, errors are ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(_explain(type(self), data, error)) from None


class ItemFields(_Part):
    """What the pipeline remembers of an item; fields that are not declared are ignored.

    Attributes
    ----------
    categorical
        Fields with one word.
    multi_categorical
        Fields with several words, and how many different ones are kept for an item: the first so many.
    numeric
        Fields with a number.
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
    embedding_dim: Annotated[int, Field(strict=True, ge=0, le=65536)] = 0


class ContextFields(_Part):
    """What the pipeline reads from ``Request.context``; other facts are ignored.

    Examples
    --------
    >>> ContextFields(numeric=["hour"], categorical=["device"]).categorical
    ('device',)
    """

    numeric: Fields = ()
    categorical: Fields = ()


class _Dense(_Part):
    """One column of the array ``dense``.

    Attributes
    ----------
    name
        Name of the column.
    transform
        Applied to the finished column ``x``: ``none``; ``log1p``, sign(x) log(1 + abs(x)); ``standardize``,
        minus the mean and divided by the population standard deviation of this list, all 0 where that is 0
        (or at most 1e-9 of the largest magnitude); ``reciprocal``, 1 / (1 + abs(x)); ``affine``,
        (x - mean) / scale.
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


class _Keyed(_Dense):
    """A feature over the user's events that share a key with the candidate.

    Attributes
    ----------
    key
        ``user``: all the user's events; ``item``: those with the candidate; or a categorical or
        multi-categorical item field: those with items of the same value. With a multi-categorical field an
        event counts once for each value of its item, and the feature is reduced over the candidate's values.
    kinds
        Which events.
    """

    key: str
    kinds: Kinds


class Count(_Keyed):
    """Number of the user's events within the window.

    Attributes
    ----------
    window
        Seconds, ``session`` or ``ever``. A window of W seconds is kept in 16 buckets whose width is W/15
        rounded up to milliseconds: it covers the events of at least the last W seconds and of at most 16
        widths, which is W (1 + 1/15) but for the rounding.
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


class Rate(_Keyed):
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


class MeanValue(_Keyed):
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


class TimeSince(_Keyed):
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


DenseFeature = (
    ServerScore | ServerRank | ItemNumeric | ContextNumeric | Count | Rate | MeanValue | TimeSince | Similarity
)


class IdFeature(_Part):
    """Columns of the array ``ids``: :func:`~rerank_features.hashing.bucket` of the value, 0 for missing.

    Attributes
    ----------
    field
        ``item``, an item's categorical or multi-categorical field, or a categorical field of the context.
    buckets
        Size of the embedding table, the row of "missing" included.
    width
        Number of columns of a multi-categorical field; as many as values are kept when left out.

    Examples
    --------
    >>> IdFeature(name="language", field="language", buckets=100).width is None
    True
    """

    name: Label
    field: str
    buckets: Buckets
    width: Annotated[int, Field(strict=True, ge=1)] | None = None


class SequenceId(_Part):
    """A column of a sequence's ids: ``item`` or an item field; of a multi-categorical field the first value.

    Examples
    --------
    >>> SequenceId(field="item", buckets=1000).buckets
    1000
    """

    field: str
    buckets: Buckets


class SequenceFeature(_Part):
    """The user's last events of some kinds, newest first, padded with zeros.

    Attributes
    ----------
    name
        Prefix of the arrays: ``<name>_ids`` (T, len(ids)) int32, ``<name>_embedding`` (T, E) float32,
        ``<name>_dense`` (T, 2) float32 with the event's value (0 for none) and log(1 + age in seconds), and
        ``<name>_mask`` (T,) float32, 1 for an event and 0 for padding.
    kinds
        Which events.
    length
        T.
    ids, embedding, dense
        Which arrays are emitted besides the mask.

    Examples
    --------
    >>> SequenceFeature(name="clicks", kinds=["click"], length=50, dense=True).ids
    ()
    """

    name: Label
    kinds: Kinds
    length: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    ids: tuple[SequenceId, ...] = ()
    embedding: Flag = False
    dense: Flag = False


class FeatureSpec(_Part):
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
    '14a255b1e196'
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
    embedding: Flag = False
    items: ItemFields = ItemFields()
    context: ContextFields = ContextFields()
    dense: tuple[Annotated[DenseFeature, Field(discriminator="kind")], ...] = ()
    ids: tuple[IdFeature, ...] = ()
    sequences: tuple[SequenceFeature, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSpec:
        _check(self)
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
        if not isinstance(source, str | Path):
            raise SpecError(f"expected TOML text or a path, got {type(source).__name__}; give a str or a Path")
        text = source if isinstance(source, str) else ""
        where = "the given text"
        if isinstance(source, Path) or not any(sign in text for sign in "=\n"):
            where = str(source)
            try:
                text = Path(source).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError, ValueError) as error:
                raise SpecError(f"cannot read the feature spec {where}: {error}; give a TOML file in UTF-8") from None
        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SpecError(f"the feature spec in {where} is no TOML: {error}; correct that line") from None
        return cls(**data)

    def to_toml(self) -> str:
        """Write the spec as TOML: every option, also the defaults, in a fixed order.

        Examples
        --------
        >>> print(FeatureSpec(name="feed").to_toml().splitlines()[0])
        name = "feed"
        """
        return _toml(self.model_dump(exclude_none=True))

    def content_hash(self) -> str:
        """SHA-256 of the spec's canonical JSON, in hexadecimal: equal for specs that are equal.

        Examples
        --------
        >>> FeatureSpec(name="a").content_hash() == FeatureSpec.from_toml('name = "a"').content_hash()
        True
        """
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _check(spec: FeatureSpec) -> None:
    """Everything that concerns more than one part."""
    items, context = spec.items, spec.context
    single, multi = items.categorical, items.multi_categorical
    for field in multi:
        if field in single:
            raise SpecError(f"items: field {field!r} is both categorical and multi_categorical; keep one")
    for field in context.categorical:
        if field in single or field in multi:
            raise SpecError(f"context: categorical field {field!r} is also an item field; rename one of them")
    for what, names in (
        ("feature", [feature.name for feature in spec.dense]),
        ("id feature", [feature.name for feature in spec.ids]),
        ("sequence", [sequence.name for sequence in spec.sequences]),
    ):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise SpecError(f"{what} {name!r}: the name is used twice; give each {what} a name of its own")
    words = (ITEM_FIELD, *single, *multi)
    for feature in spec.dense:
        where = f"feature {feature.name!r}"
        if isinstance(feature, ItemNumeric):
            _declared(where, "field", feature.field, items.numeric, "items.numeric")
        elif isinstance(feature, ContextNumeric):
            _declared(where, "field", feature.field, context.numeric, "context.numeric")
        elif isinstance(feature, _Keyed):
            _declared(where, "key", feature.key, (USER_KEY, *words), "items, beside 'user' and 'item'")
            if isinstance(feature, Count | Rate | MeanValue) and feature.reduce and feature.key not in multi:
                raise SpecError(
                    f"{where}: reduce = {feature.reduce!r} is for a multi-categorical key, but key "
                    f"{feature.key!r} has one value; leave it out"
                )
        elif isinstance(feature, Similarity):
            names = [sequence.name for sequence in spec.sequences]
            _declared(where, "sequence", feature.sequence, names, "sequences")
            _needs_embedding(where, "kind = 'similarity'", items)
    for column in spec.ids:
        where = f"id feature {column.name!r}"
        _declared(where, "field", column.field, (*words, *context.categorical), "items or context, beside 'item'")
        if column.width is not None and column.width > multi.get(column.field, 0):
            raise SpecError(
                f"{where}: width = {column.width} but field {column.field!r} keeps "
                + (f"{multi[column.field]} values; lower it" if column.field in multi else "one value; leave it out")
            )
    for sequence in spec.sequences:
        where = f"sequence {sequence.name!r}"
        for part in sequence.ids:
            _declared(where, "ids field", part.field, words, "items, beside 'item'")
        if sequence.embedding:
            _needs_embedding(where, "embedding = true", items)
    if spec.embedding:
        _needs_embedding("the spec", "embedding = true", items)


def _declared(where: str, what: str, name: str, known: tuple[str, ...] | list[str], place: str) -> None:
    if name not in known:
        listed = ", ".join(repr(one) for one in known) or "nothing"
        raise SpecError(
            f"{where}: {what} {name!r} is not declared under {place} (declared: {listed}); "
            "declare it there, or correct the name"
        )


def _needs_embedding(where: str, what: str, items: ItemFields) -> None:
    if items.embedding_dim == 0:
        raise SpecError(f"{where}: {what} needs item embeddings, but items.embedding_dim is 0; set their length there")


def _explain(model: type[BaseModel], data: dict[str, Any], error: ValidationError) -> str:
    """One line: which feature, which field, what is wrong, what came, and the way out."""
    parts = []
    for problem in error.errors(include_url=False)[:3]:
        location, cause = problem["loc"], problem.get("ctx", {}).get("error")
        if isinstance(cause, SpecError):  # of a nested part, which has named itself, or of _check
            parts.append(str(cause))
            continue
        field = ".".join(str(step) for step in location)
        came = repr(problem.get("input"))
        came = came if len(came) <= 80 else came[:80] + "…"
        if problem["type"] == "extra_forbidden":
            known = ", ".join(name for name in model.model_fields if name != "kind")
            text = f"unknown option {field!r}; the options are {known}"
        elif problem["type"] == "missing":
            text = f"{field!r} is missing; add it"
        elif problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
            part = problem.get("input")
            name, kind = (part.get("name"), part.get("kind")) if isinstance(part, dict) else (None, part)
            text = f"feature {name!r}: unknown kind {kind!r}; use one of {_DENSE_KINDS}"
        elif cause is not None:
            text = f"{field}: {cause}" if field else str(cause)
        else:
            hint = _HINTS.get(str(location[0]) if location else "", "correct the value")
            if isinstance(problem.get("input"), dict) and problem["type"] == "tuple_type":
                hint = f"write [[{field}]] for each of several"
            message = problem["msg"].replace("valid tuple", "list").replace("valid dictionary", "table")
            text = f"{field}: {message}, got {came}; {hint}"
        parts.append(text)
    more = error.error_count() - len(parts)
    text = "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
    if model is FeatureSpec:
        return text if isinstance(error.errors()[0].get("ctx", {}).get("error"), SpecError) else f"feature spec: {text}"
    title = {SequenceFeature: "sequence", IdFeature: "id feature"}.get(model, "feature")
    return f"{title} {data['name']!r}: {text}" if "name" in data else f"{model.__name__}: {text}"


_DENSE_KINDS = ", ".join(
    (
        "server_score",
        "server_rank",
        "item_numeric",
        "context_numeric",
        "count",
        "rate",
        "mean_value",
        "time_since",
        "similarity",
    )
)


def _toml(data: dict[str, Any]) -> str:
    """Tables of plain values: scalars and arrays first, then tables, then arrays of tables."""
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in data.items() if not _is_table(value)]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += ["", f"[{_toml_key(key)}]"]
            lines += [f"{_toml_key(name)} = {_toml_value(part)}" for name, part in value.items()]
        elif _is_table(value):
            for table in value:
                lines += ["", f"[[{_toml_key(key)}]]"]
                lines += [f"{_toml_key(name)} = {_toml_value(part)}" for name, part in table.items()]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, tuple) and bool(value) and isinstance(value[0], dict))


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(part) for part in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's; JSON leaves DEL as it is, TOML does not allow it
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
