"""A small spec that every model of the zoo can read, and a synthetic stream of lists to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.training_set import LabelledRequest, TrainingSet, build_training_set

SPEC = """
name = "tiny"
embedding = true
[items]
categorical = ["colour"]
multi_categorical = {tags = 3}
numeric = ["price"]
embedding_dim = 4
[[dense]]
kind = "server_rank"
name = "rank"
[[dense]]
kind = "item_numeric"
name = "price"
field = "price"
[[dense]]
kind = "count"
name = "colour_likes"
key = "colour"
kinds = ["like"]
window = "ever"
[[dense]]
kind = "similarity"
name = "taste"
sequence = "history"
[[ids]]
name = "colour"
field = "colour"
buckets = 16
[[ids]]
name = "tags"
field = "tags"
buckets = 16
width = 2
[[sequences]]
name = "history"
kinds = ["like"]
length = 5
embedding = true
dense = true
"""

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="session")
def tiny_spec() -> FeatureSpec:
    return FeatureSpec.from_toml(SPEC)


@pytest.fixture(scope="session")
def tiny_data(tiny_spec: FeatureSpec) -> TrainingSet:
    """Users who want what has the colour of their last like."""
    generator = np.random.default_rng(5)
    items = [
        Item(
            id=f"i{number}",
            categorical={"colour": COLOURS[number % 3]},
            multi_categorical={"tags": (f"t{number % 7}", f"t{number % 5}")},
            numeric={"price": float(number % 11)},
            embedding=tuple(np.eye(4)[number % 3].tolist()),
        )
        for number in range(60)
    ]
    stream: list[Event | LabelledRequest | list[Item]] = [items]
    for step in range(120):
        colour = int(generator.integers(3))
        user, now = f"u{step}", 1_000 * step
        stream.append(Event(user=user, item=f"i{colour}", kind="like", value=5.0, time_ms=now))
        chosen = generator.choice(60, int(generator.integers(3, 20)), replace=False)
        request = Request(user=user, candidates=[items[i] for i in chosen], time_ms=now + 1)
        stream.append(LabelledRequest(request, (chosen % 3 == colour).astype(np.float32)))
    return build_training_set(tiny_spec, stream)
