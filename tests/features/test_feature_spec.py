"""The spec refuses what it cannot compute, says why, and survives TOML."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rerank_features
from rerank_engine.errors import SpecError
from rerank_features import FeatureSpec
from rerank_features.spec import (
    ContextFields,
    ContextNumeric,
    Count,
    IdFeature,
    ItemFields,
    ItemNumeric,
    MeanValue,
    Rate,
    SequenceFeature,
    SequenceId,
    ServerRank,
    ServerScore,
    Similarity,
    TimeSince,
)

ITEMS: dict[str, Any] = {
    "categorical": ["lang"],
    "multi_categorical": {"genres": 2},
    "numeric": ["price"],
    "embedding_dim": 4,
}
COUNT: dict[str, Any] = {"kind": "count", "name": "c", "key": "user", "kinds": ["click"], "window": 60}
CLICKS: dict[str, Any] = {"name": "clicks", "kinds": ["click"], "length": 3}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown item field": (
        {"dense": [{"kind": "item_numeric", "name": "p", "field": "prize"}]},
        "feature 'p': field 'prize' is not declared under items.numeric (declared: 'price')",
    ),
    "unknown context field": (
        {"dense": [{"kind": "context_numeric", "name": "h", "field": "hour"}]},
        "feature 'h': field 'hour' is not declared under context.numeric (declared: nothing)",
    ),
    "unknown key": ({"dense": [{**COUNT, "key": "color"}]}, "feature 'c': key 'color' is not declared under items"),
    "numeric field as key": ({"dense": [{**COUNT, "key": "price"}]}, "key 'price' is not declared"),
    "duplicate feature": ({"dense": [COUNT, COUNT]}, "feature 'c': the name is used twice"),
    "duplicate id": (
        {"ids": [{"name": "i", "field": "item", "buckets": 9}] * 2},
        "id feature 'i': the name is used twice",
    ),
    "duplicate sequence": ({"sequences": [CLICKS, CLICKS]}, "sequence 'clicks': the name is used twice"),
    "unknown kind": (
        {"dense": [{**COUNT, "kind": "median"}]},
        "feature 'c': unknown kind 'median'; use one of server_score,",
    ),
    "no kind": ({"dense": [{"name": "c"}]}, "feature 'c': unknown kind None"),
    "unknown sequence": (
        {"dense": [{"kind": "similarity", "name": "s", "sequence": "likes"}], "sequences": [CLICKS]},
        "feature 's': sequence 'likes' is not declared under sequences (declared: 'clicks')",
    ),
    "negative window": (
        {"dense": [{**COUNT, "window": -5}]},
        "feature 'c': window: expected seconds above 0 and up to 3155760000, 'session', 'ever' or a half life, got -5",
    ),
    "window in words": ({"dense": [{**COUNT, "window": "day"}]}, "'session', 'ever' or a half life, got 'day'"),
    "window as text": ({"dense": [{**COUNT, "window": "60"}]}, "'session', 'ever' or a half life, got '60'"),
    "window true": ({"dense": [{**COUNT, "window": True}]}, "'session', 'ever' or a half life, got True"),
    "window nan": ({"dense": [{**COUNT, "window": float("nan")}]}, "'session', 'ever' or a half life, got nan"),
    "no window": (
        {"dense": [{k: v for k, v in COUNT.items() if k != "window"}]},
        "feature 'c': 'window' is missing; add it",
    ),
    "unknown option": (
        {"dense": [{**COUNT, "windw": 1}]},
        "feature 'c': unknown option 'windw'; the options are name, transform,",
    ),
    "unknown part": ({"densee": []}, "feature spec: unknown option 'densee'; the options are name, session_gap_s,"),
    "no event kinds": ({"dense": [{**COUNT, "kinds": []}]}, "feature 'c': kinds: "),
    "bad event kind": ({"dense": [{**COUNT, "kinds": ["Click!"]}]}, "list event kinds, lower-case identifiers"),
    "event kind twice": ({"dense": [{**COUNT, "kinds": ["click", "click"]}]}, "'click' is listed twice"),
    "reduce of one value": (
        {"dense": [{**COUNT, "key": "lang", "reduce": "max"}]},
        "feature 'c': reduce = 'max' is for a multi-categorical key, but key 'lang' has one value",
    ),
    "mean without affine": ({"dense": [{**COUNT, "mean": 1}]}, "mean and scale belong to transform = 'affine'"),
    "scale of zero": ({"dense": [{**COUNT, "transform": "affine", "scale": 0}]}, "scale must be at least 1e-30"),
    "bad transform": ({"dense": [{**COUNT, "transform": "log"}]}, "feature 'c': transform: "),
    "negative prior": (
        {"dense": [{**COUNT, "kind": "rate", "of": ["click"], "prior": -1}]},
        "feature 'c': prior: ",
    ),
    "one bucket": ({"ids": [{"name": "i", "field": "item", "buckets": 1}]}, "id feature 'i': buckets: "),
    "unknown id field": (
        {"ids": [{"name": "i", "field": "x", "buckets": 9}]},
        "id feature 'i': field 'x' is not declared under items or context",
    ),
    "width of one value": (
        {"ids": [{"name": "i", "field": "lang", "buckets": 9, "width": 2}]},
        "id feature 'i': width = 2 but field 'lang' keeps one value; leave it out",
    ),
    "too wide": (
        {"ids": [{"name": "i", "field": "genres", "buckets": 9, "width": 3}]},
        "id feature 'i': width = 3 but field 'genres' keeps 2 values; lower it",
    ),
    "unknown sequence id field": (
        {"sequences": [{**CLICKS, "ids": [{"field": "x", "buckets": 9}]}]},
        "sequence 'clicks': ids field 'x' is not declared",
    ),
    "no length": ({"sequences": [{**CLICKS, "length": 0}]}, "sequence 'clicks': length: "),
    "field twice": ({"items": {"categorical": ["a", "a"]}}, "'a' is listed twice"),
    "field of two sorts": (
        {"items": {"categorical": ["a"], "multi_categorical": {"a": 2}}},
        "field 'a' is both categorical and multi_categorical",
    ),
    "field of item and context": (
        {"context": {"categorical": ["lang"]}},
        "context: field 'lang' is also an item field",
    ),
    "reserved word": ({"items": {"categorical": ["item"]}}, "'item' is a reserved word"),
    "long field name": ({"items": {"categorical": ["ä" * 33]}}, "a field name has 1 to 64 bytes of UTF-8"),
    "long name": ({"name": "n" * 129}, "a name has 1 to 128 bytes of UTF-8"),
    "gap of zero": ({"session_gap_s": 0}, "feature spec: session_gap_s: "),
    "no users": ({"max_users": 0}, "feature spec: max_users: "),
}

NO_EMBEDDING: dict[str, tuple[dict[str, Any], str]] = {
    "similarity": (
        {"dense": [{"kind": "similarity", "name": "s", "sequence": "clicks"}], "sequences": [CLICKS]},
        "feature 's': kind = 'similarity' needs item embeddings",
    ),
    "sequence": ({"sequences": [{**CLICKS, "embedding": True}]}, "sequence 'clicks': embedding = true needs"),
    "array": ({"embedding": True}, "the spec: embedding = true needs item embeddings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_specs_are_refused_with_their_reason(case: str) -> None:
    parts, message = WRONG[case]
    with pytest.raises(SpecError, match=re.escape(message)):
        FeatureSpec(**{"name": "feed", "items": ITEMS, **parts})


@pytest.mark.parametrize("case", NO_EMBEDDING)
def test_embeddings_must_have_a_length(case: str) -> None:
    parts, message = NO_EMBEDDING[case]
    with pytest.raises(SpecError, match=re.escape(message)):
        FeatureSpec(name="feed", **parts)


def test_many_errors_become_one_line() -> None:
    with pytest.raises(SpecError, match=r"and 2 more$") as caught:
        FeatureSpec(name="feed", dense=[{**COUNT, "name": str(i), "window": 0} for i in range(5)])
    assert "\n" not in str(caught.value)


def test_a_part_made_alone_raises_our_error() -> None:
    with pytest.raises(SpecError, match="feature 'c': window: expected seconds"):
        Count(name="c", key="user", kinds=["click"], window=0)
    with pytest.raises(SpecError, match=r"ItemFields: numeric.0: a field name has"):
        ItemFields(numeric=[""])


def full_spec() -> FeatureSpec:
    return FeatureSpec(
        name='a "quoted" näme\n\x7f\\',
        session_gap_s=90,
        embedding=True,
        items=ItemFields(
            categorical=["lang", "two words"],
            multi_categorical={"genres": 3, "ß": 1},
            numeric=["price"],
            embedding_dim=4,
        ),
        context=ContextFields(numeric=["hour"], categorical=["device"]),
        dense=[
            ServerScore(name="score", transform="standardize", group="server"),
            ServerRank(name="rank", transform="reciprocal", group="server"),
            ItemNumeric(name="price", field="price", default=-1.5, transform="affine", mean=2, scale=1e-05),
            ContextNumeric(name="hour", field="hour"),
            Count(name="c", key="genres", kinds=["click", "like"], window="session", weight="value", reduce="max"),
            Rate(name="r", key="lang", kinds=["click"], of=["impression"], window=0.5, prior=0, prior_rate=0.1),
            MeanValue(name="m", key="item", kinds=["dwell"], window="ever"),
            TimeSince(name="t", key="user", kinds=["click"], cap_s=10),
            Similarity(name="s", sequence="clicks", reduce="last", metric="dot", weighted=True),
        ],
        ids=[IdFeature(name="g", field="genres", buckets=7, width=2), IdFeature(name="d", field="device", buckets=5)],
        sequences=[
            SequenceFeature(
                name="clicks",
                kinds=["click"],
                length=5,
                ids=[SequenceId(field="item", buckets=9), SequenceId(field="lang", buckets=3)],
                embedding=True,
                dense=True,
            ),
            SequenceFeature(name="bare", kinds=["skip"], length=1),
        ],
    )


def test_toml_round_trip_keeps_everything() -> None:
    spec = full_spec()
    text = spec.to_toml()
    again = FeatureSpec.from_toml(text)
    assert again == spec
    assert again.to_toml() == text
    assert again.content_hash() == spec.content_hash()


@given(st.text(min_size=1, max_size=30), st.floats(1e-3, 1e9), st.floats(allow_nan=False, allow_infinity=False))
def test_toml_keeps_any_name_and_number(name: str, gap: float, default: float) -> None:
    spec = FeatureSpec(
        name=name,
        session_gap_s=gap,
        items=ItemFields(numeric=["p"]),
        dense=[ItemNumeric(name=name, field="p", default=default, group=name)],
    )
    assert FeatureSpec.from_toml(spec.to_toml()) == spec


def test_hash_depends_on_content_alone() -> None:
    base: dict[str, Any] = {"name": "feed", "items": ITEMS, "dense": [COUNT]}
    spec = FeatureSpec(**base)
    assert re.fullmatch("[0-9a-f]{64}", spec.content_hash())
    assert FeatureSpec(**{**base, "dense": [{**COUNT, "window": 60.0}]}).content_hash() == spec.content_hash()
    assert FeatureSpec(**{**base, "dense": [{**COUNT, "window": 61}]}).content_hash() != spec.content_hash()
    one = FeatureSpec(name="n", items=ItemFields(multi_categorical={"a": 1, "b": 2}))
    other = FeatureSpec(name="n", items=ItemFields(multi_categorical={"b": 2, "a": 1}))
    assert one.content_hash() == other.content_hash()


def test_toml_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(full_spec().to_toml(), encoding="utf-8")
    assert FeatureSpec.from_toml(path) == full_spec()
    assert FeatureSpec.from_toml(str(path)) == full_spec()


def test_unreadable_toml_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the feature spec .*none.toml.*give a TOML file"):
        FeatureSpec.from_toml(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="the given text is no TOML"):
        FeatureSpec.from_toml("name = ")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read"):
        FeatureSpec.from_toml(binary)
    with pytest.raises(SpecError, match="cannot read"):
        FeatureSpec.from_toml("a\0b")


def test_the_spec_that_is_shipped_is_valid() -> None:
    spec = FeatureSpec.from_toml(Path(rerank_features.__file__).parent / "specs" / "feed.toml")
    assert spec.name == "feed"
    assert FeatureSpec.from_toml(spec.to_toml()) == spec


def test_specs_are_values() -> None:
    spec = full_spec()
    with pytest.raises(Exception, match="frozen"):
        spec.name = "other"  # type: ignore[misc]
    assert spec.dense[0].label == "server"
    assert spec.dense[2].label == "price"


def test_reading_a_spec_does_not_import_the_compiler() -> None:
    code = "import sys, rerank_features.spec; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
