"""A bundle made by hand for the tests of the SDK: five columns, one hidden layer, no training, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_features import Event, FeatureSpec, Item, Request
from rerank_sdk.bundle import Bundle
from rerank_sdk.reranker import Reranker

GENRES = ("drama", "comedy", "horror")
EMBEDDING_DIM = 3
START_MS = 1_700_000_000_000

SPEC = """
name = "tiny"
{options}

[items]
categorical = ["genre"]
numeric = ["price"]
embedding_dim = {embedding_dim}

[context]
numeric = ["hour"]

[[dense]]
kind = "server_score"
name = "server_score"
group = "the server"

[[dense]]
kind = "item_numeric"
name = "price"
field = "price"
group = "its price"

[[dense]]
kind = "count"
name = "genre_clicks"
key = "genre"
kinds = ["click", "like"]
window = 3600
transform = "log1p"
group = "genres you opened"

[[dense]]
kind = "similarity"
name = "like_opened"
sequence = "opened"
group = "similar to what you opened"

[[dense]]
kind = "context_numeric"
name = "hour"
field = "hour"
group = "the hour"

[[sequences]]
name = "opened"
kinds = ["click", "like"]
length = 8
"""

COLUMNS = 5
HIDDEN = 6


def make_spec(embedding_dim: int = EMBEDDING_DIM, **options: int) -> FeatureSpec:
    lines = "\n".join(f"{name} = {value}" for name, value in options.items())
    return FeatureSpec.from_toml(SPEC.format(options=lines, embedding_dim=embedding_dim))


def make_model(
    hidden: NDArray[np.float32] | None = None, last: NDArray[np.float32] | None = None, *, head: bool = True
) -> Model:
    """``relu(dense @ hidden) @ last``; by default the history counts most, then the server."""
    if hidden is None:
        hidden = np.array(
            [
                [0.5, -0.5, 0.0, 0.0, 0.3, 0.1],
                [0.1, 0.2, 0.0, 0.0, -0.1, 0.2],
                [0.0, 0.0, 2.0, -0.5, 0.4, 0.3],
                [0.2, 0.0, 0.5, 1.5, 0.1, -0.3],
                [0.01, 0.0, 0.02, 0.0, 0.0, 0.1],
            ],
            np.float32,
        )
    if last is None:
        last = np.array([[1.0], [-0.7], [0.9], [0.8], [0.2], [0.1]], np.float32)
    width = hidden.shape[1]
    graph = Graph("tiny", inputs=["dense"], outputs=["score"])
    for name, columns in (("dense", hidden.shape[0]), ("product", width), ("hidden", width), ("score", 1)):
        graph.values[name] = Value(name, "float32", (Dim("N"), columns))
    first, second = graph.add_constant("w1", hidden), graph.add_constant("w2", last)
    graph.nodes = [
        Node("MatMul", "first", ("dense", first), ("product",)),
        Node("Relu", "relu", ("product",), ("hidden",)),
        Node("MatMul", "last", ("hidden", second), ("score",)),
    ]
    if head:
        graph.values["head_input"] = Value("head_input", "float32", (Dim("N"), width))
        graph.nodes.append(Node("Identity", "head_input", ("hidden",), ("head_input",)))
        graph.outputs.append("head_input")
    return Model(graph)


def make_linear_model(weight: NDArray[np.float32]) -> Model:
    """``dense @ weight``; the last layer reads the columns themselves."""
    graph = Graph("linear", inputs=["dense"], outputs=["score", "head_input"])
    for name, columns in (("dense", len(weight)), ("score", 1), ("head_input", len(weight))):
        graph.values[name] = Value(name, "float32", (Dim("N"), columns))
    constant = graph.add_constant("w", weight.reshape(-1, 1))
    graph.nodes = [
        Node("MatMul", "last", ("dense", constant), ("score",)),
        Node("Identity", "head_input", ("dense",), ("head_input",)),
    ]
    return Model(graph)


def make_item(number: int, **changes: Any) -> Item:
    """An item whose fields follow from its number."""
    generator = np.random.default_rng(number)
    fields: dict[str, Any] = {
        "id": f"item-{number}",
        "categorical": {"genre": GENRES[number % len(GENRES)]},
        "numeric": {"price": float(number % 7)},
        "embedding": tuple(generator.normal(size=EMBEDDING_DIM).round(3).tolist()),
    }
    return Item(**{**fields, **changes})


class Kit:
    """What the tests take from here."""

    START_MS = START_MS
    GENRES = GENRES
    COLUMNS = COLUMNS
    HIDDEN = HIDDEN
    make_spec = staticmethod(make_spec)
    make_model = staticmethod(make_model)
    make_linear_model = staticmethod(make_linear_model)
    item = staticmethod(make_item)

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self.items = tuple(make_item(number) for number in range(30))

    def bundle(self, model: Model | None = None, spec: FeatureSpec | None = None, name: str = "tiny") -> Bundle:
        return Bundle.build(name, model or make_model(), spec or make_spec())

    def event(self, number: int = 0, kind: str = "click", after_s: float = 0, user: str = "ann", **more: Any) -> Event:
        return Event(user=user, item=f"item-{number}", kind=kind, time_ms=START_MS + round(after_s * 1000), **more)

    def request(self, count: int = 12, after_s: float = 60, user: str = "ann", **more: Any) -> Request:
        """The first ``count`` items, the server's scores falling from 1 to 0."""
        candidates = more.pop("candidates", self.items[:count])
        more.setdefault("scores", np.linspace(1, 0, len(candidates)).tolist())
        return Request(user=user, candidates=candidates, time_ms=START_MS + round(after_s * 1000), **more)


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Makers of items, events, requests, models and bundles; machine code is compiled once a session."""
    return Kit(tmp_path_factory.mktemp("machine-code"))


@pytest.fixture(scope="session")
def bundle(kit: Kit) -> Bundle:
    """The bundle of most tests."""
    return kit.bundle()


@pytest.fixture
def open_reranker(kit: Kit, bundle: Bundle, tmp_path: Path) -> Iterator[Callable[..., Reranker]]:
    """Open a re-ranker on a folder of the test; it is closed at the end. No deadline unless asked for."""
    with ExitStack() as stack:

        def make(folder: str = "state", **options: Any) -> Reranker:
            options.setdefault("deadline_ms", None)
            options.setdefault("cache_dir", kit.cache_dir)
            chosen = options.pop("bundle", bundle)
            return stack.enter_context(Reranker.open(tmp_path / folder, chosen, **options))

        yield make
