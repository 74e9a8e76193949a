"""Everything in a spec that concerns more than one part."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rerank_engine.errors import SpecError
from rerank_features.dense import (
    ContextMatch,
    ContextNumeric,
    Count,
    HistoryDistinct,
    HistoryMatch,
    HistoryNumber,
    HistoryStreak,
    ItemAge,
    ItemNumeric,
    Keyed,
    ListShare,
    LocalTime,
    MeanValue,
    OfHistory,
    Rate,
    Similarity,
)
from rerank_features.hashing import ITEM_FIELD
from rerank_features.parts import KIND_FIELD, USER_KEY

if TYPE_CHECKING:
    from rerank_features.spec import FeatureSpec, SequenceFeature

MOST_KINDS = 62
"""Different kinds of events that one spec may name: a set of them is one machine word."""

ENTRY_NUMBERS = ("value", "age_s", "gap_s", "position")
"""Numbers that every entry of a sequence has by itself."""


def check_spec(spec: FeatureSpec) -> None:
    """Refuse names that are not declared, names used twice, and options that do not fit each other.

    Raises
    ------
    SpecError
        Names feature, field and the way out.
    """
    _check_fields(spec)
    for what, names in (
        ("feature", [feature.name for feature in spec.dense]),
        ("id feature", [feature.name for feature in spec.ids]),
        ("sequence", [sequence.name for sequence in spec.sequences]),
    ):
        for i, name in enumerate(names):
            if name in names[:i]:
                raise SpecError(f"{what} {name!r}: the name is used twice; give each {what} a name of its own")
    kinds = used_kinds(spec)
    if len(kinds) > MOST_KINDS:
        raise SpecError(f"the spec names {len(kinds)} kinds of events; {MOST_KINDS} at most: use fewer kinds")
    _check_dense(spec)
    _check_ids(spec)
    _check_sequences(spec)


def used_kinds(spec: FeatureSpec) -> list[str]:
    """The kinds of events that a spec names, in the order of their first use."""
    found: dict[str, None] = {}
    for feature in (*spec.dense, *spec.sequences):
        for name in ("kinds", "of", "until"):
            found.update(dict.fromkeys(getattr(feature, name, None) or ()))
    return list(found)


def several_values(spec: FeatureSpec) -> dict[str, int]:
    """Item fields with several values, and how many are kept."""
    return {**spec.items.multi_categorical, **spec.items.text}


def _check_fields(spec: FeatureSpec) -> None:
    items, context = spec.items, spec.context
    for field in items.multi_categorical:
        if field in items.categorical:
            raise SpecError(f"items: field {field!r} is both categorical and multi_categorical; keep one")
    for field in items.text:
        if field in items.categorical or field in items.multi_categorical:
            raise SpecError(f"items: field {field!r} is both text and (multi_)categorical; keep one")
    for field in (*context.categorical, *context.text):
        if field in items.categorical or field in several_values(spec):
            raise SpecError(f"context: field {field!r} is also an item field; rename one of them")
        if field in context.categorical and field in context.text:
            raise SpecError(f"context: field {field!r} is both categorical and text; keep one")


def _words(spec: FeatureSpec) -> tuple[str, ...]:
    return ITEM_FIELD, *spec.items.categorical, *several_values(spec)


def _check_dense(spec: FeatureSpec) -> None:
    items, context, words = spec.items, spec.context, _words(spec)
    for feature in spec.dense:
        where = f"feature {feature.name!r}"
        if isinstance(feature, ItemNumeric | ItemAge):
            _declared(where, "field", feature.field, items.numeric, "items.numeric")
        elif isinstance(feature, ContextNumeric):
            _declared(where, "field", feature.field, context.numeric, "context.numeric")
        elif isinstance(feature, LocalTime):
            if feature.offset is not None:
                _declared(where, "offset", feature.offset, context.numeric, "context.numeric")
        elif isinstance(feature, ListShare):
            _declared(where, "field", feature.field, words, "items, beside 'item'")
        elif isinstance(feature, ContextMatch):
            _declared(where, "field", feature.field, words, "items, beside 'item'")
            _declared(where, "context", feature.context, (*context.categorical, *context.text), "context")
        elif isinstance(feature, Keyed):
            _declared(where, "key", feature.key, (USER_KEY, *words), "items, beside 'user' and 'item'")
            if isinstance(feature, Count | Rate | MeanValue):
                _check_reduce(spec, where, feature.key, feature.reduce)
        elif isinstance(feature, Similarity):
            _sequence(spec, where, feature.sequence)
            _needs_embedding(spec, where, "kind = 'similarity'")
        elif isinstance(feature, OfHistory):
            _check_history(spec, where, feature, words)
    if spec.embedding:
        _needs_embedding(spec, "the spec", "embedding = true")


def _check_reduce(spec: FeatureSpec, where: str, key: str, reduce: str | None) -> None:
    if reduce and key not in several_values(spec):
        raise SpecError(
            f"{where}: reduce = {reduce!r} is for a multi-categorical key, but key {key!r} has one value; leave it out"
        )


def _check_history(spec: FeatureSpec, where: str, feature: OfHistory, words: tuple[str, ...]) -> None:
    sequence = _sequence(spec, where, feature.sequence)
    _check_kinds(where, "kinds", feature.kinds, sequence)
    if isinstance(feature, HistoryStreak):
        _check_kinds(where, "until", feature.until, sequence)
    if isinstance(feature, HistoryDistinct | HistoryMatch | HistoryStreak) and feature.field is not None:
        _declared(where, "field", feature.field, words, "items, beside 'item'")
    if isinstance(feature, HistoryNumber):
        known = (*ENTRY_NUMBERS, *spec.items.numeric)
        _declared(where, "number", feature.number, known, "items.numeric, beside the entries' own")
        if feature.against != "none" and feature.number in ("value", "age_s", "gap_s"):
            raise SpecError(
                f"{where}: a candidate has no {feature.number} of its own, so against = {feature.against!r} cannot be; "
                "take against = 'none', 'position' or an item field"
            )


def _check_kinds(where: str, what: str, kinds: Iterable[str] | None, sequence: SequenceFeature) -> None:
    for kind in kinds or ():
        if kind not in sequence.kinds:
            raise SpecError(
                f"{where}: {what} has {kind!r}, which sequence {sequence.name!r} does not hold "
                f"(it holds: {', '.join(map(repr, sequence.kinds))}); add it to the sequence's kinds"
            )


def _check_ids(spec: FeatureSpec) -> None:
    several = several_values(spec)
    for column in spec.ids:
        where = f"id feature {column.name!r}"
        known = (*_words(spec), *spec.context.categorical)
        _declared(where, "field", column.field, known, "items or context, beside 'item'")
        if column.width is not None and column.width > several.get(column.field, 0):
            raise SpecError(
                f"{where}: width = {column.width} but field {column.field!r} keeps "
                + (
                    f"{several[column.field]} values; lower it"
                    if column.field in several
                    else "one value; leave it out"
                )
            )


def _check_sequences(spec: FeatureSpec) -> None:
    for sequence in spec.sequences:
        where = f"sequence {sequence.name!r}"
        for part in sequence.ids:
            if part.field != KIND_FIELD:
                _declared(where, "ids field", part.field, _words(spec), "items, beside 'item' and 'kind'")
            elif part.buckets != len(sequence.kinds) + 1:
                raise SpecError(
                    f"{where}: ids field 'kind' has buckets = {part.buckets}, but the sequence has "
                    f"{len(sequence.kinds)} kinds; set buckets = {len(sequence.kinds) + 1}"
                )
        for action in sequence.actions:
            _check_kinds(where, "an action", action.kinds, _sequence(spec, where, action.sequence))
        if sequence.embedding:
            _needs_embedding(spec, where, "embedding = true")


def _sequence(spec: FeatureSpec, where: str, name: str) -> SequenceFeature:
    _declared(where, "sequence", name, [sequence.name for sequence in spec.sequences], "sequences")
    return next(sequence for sequence in spec.sequences if sequence.name == name)


def _declared(where: str, what: str, name: str, known: tuple[str, ...] | list[str], place: str) -> None:
    if name not in known:
        listed = ", ".join(repr(one) for one in known) or "nothing"
        nearest = get_close_matches(name, known, 1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else "declare it there, or correct the name"
        raise SpecError(f"{where}: {what} {name!r} is not declared under {place} (declared: {listed}); {meant}")


def _needs_embedding(spec: FeatureSpec, where: str, what: str) -> None:
    if spec.items.embedding_dim == 0:
        raise SpecError(f"{where}: {what} needs item embeddings, but items.embedding_dim is 0; set their length there")
