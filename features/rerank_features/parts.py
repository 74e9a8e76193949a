"""What every part of a spec is made of: checked types, common rules, errors that name the part and the way out."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rerank_engine.errors import SpecError
from rerank_features.events import Kind
from rerank_features.hashing import ITEM_FIELD, MAX_FIELD_BYTES

USER_KEY = "user"
"""The key under which all of a user's events count."""

KIND_FIELD = "kind"
"""Field of a sequence's ids that holds the event's kind: 1 for the first of the sequence's kinds."""

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
    if name in (ITEM_FIELD, USER_KEY, KIND_FIELD):
        raise ValueError(f"{name!r} is a reserved word and cannot name a field; rename the field")
    return name


def _label(name: str) -> str:
    if not 1 <= len(name.encode()) <= 128:
        raise ValueError(f"a name has 1 to 128 bytes of UTF-8, got {name!r}; shorten it")
    return name


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a name that is listed twice."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} is listed twice; drop one of them")
    return names


def _window(window: object) -> object:
    if isinstance(window, Decay | dict) or (isinstance(window, str) and window in ("session", "ever")):
        return window
    if isinstance(window, int | float) and not isinstance(window, bool) and 0 < window <= MAX_WINDOW_S:
        return float(window)
    raise ValueError(
        f"expected seconds above 0 and up to {MAX_WINDOW_S:.0f}, 'session', 'ever' or a half life, got {window!r}"
    )


FieldName = Annotated[str, AfterValidator(_field_name)]
Fields = Annotated[tuple[FieldName, ...], AfterValidator(distinct)]
Label = Annotated[str, AfterValidator(_label)]
Kinds = Annotated[tuple[Kind, ...], Field(min_length=1), AfterValidator(distinct)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0)]
NotNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
Buckets = Annotated[int, Field(strict=True, ge=2, le=2**31 - 1)]
Transform = Literal[
    "none",
    "log1p",
    "standardize",
    "reciprocal",
    "affine",
    "list_rank",
    "minus_median",
    "minus_mean",
    "minus_previous",
    "minmax",
]
Reduce = Literal["sum", "mean", "max"]


class Part(BaseModel):
    """Common rules: unknown options are refused, values never change, errors are ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(self._explained(data, error)) from None

    @classmethod
    def _explained(cls, data: dict[str, Any], error: ValidationError) -> str:
        """What is wrong, in one line."""
        return explain(cls, data, error)


def canonical_hash(part: BaseModel) -> str:
    """SHA-256 of a part's canonical JSON, in hexadecimal: equal for parts that are equal.

    Examples
    --------
    >>> canonical_hash(Decay(half_life_s=1.0)) == canonical_hash(Decay(half_life_s=1))
    True
    """
    canonical = json.dumps(part.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class Decay(Part):
    """A window without an edge: an event's weight halves every ``half_life_s`` seconds.

    Kept in 16 buckets of a third of the half life: an event's age is known to a sixth of it (12 % of the weight), and
    what is older than 5.3 half lives (2.5 % of the weight) is gone.

    Examples
    --------
    >>> Decay(half_life_s=3600.0).half_life_s
    3600.0
    """

    half_life_s: Annotated[float, Field(strict=True, gt=0, le=MAX_WINDOW_S)]


Window = Annotated[float | Literal["session", "ever"] | Decay, BeforeValidator(_window)]
Recent = Annotated[float | Literal["session", "ever"], BeforeValidator(_window)]
"""A window over the entries of a sequence."""


def explain(model: type[BaseModel], data: dict[str, Any], error: ValidationError) -> str:
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
            kinds = ", ".join(problem.get("ctx", {}).get("expected_tags", "").replace("'", "").split(", "))
            name, kind = (part.get("name"), part.get("kind")) if isinstance(part, dict) else (None, part)
            text = f"feature {name!r}: unknown kind {kind!r}; use one of {kinds}"
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
    if model.__name__ == "FeatureSpec":
        return text if isinstance(error.errors()[0].get("ctx", {}).get("error"), SpecError) else f"feature spec: {text}"
    title = {"SequenceFeature": "sequence", "IdFeature": "id feature"}.get(model.__name__, "feature")
    return f"{title} {data['name']!r}: {text}" if "name" in data else f"{model.__name__}: {text}"
