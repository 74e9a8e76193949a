"""The model of the benchmark: attention over two streams, trained on the generated shop."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rerank_engine import convert
from rerank_engine.errors import MissingExtraError
from rerank_features import Event, FeatureSpec, Item
from rerank_features.training_set import LabelledRequest, TrainingSet, build_training_set
from rerank_sdk.bundle import Bundle
from rerank_simulator.feature_benchmark.stream import ShopStream

Entry = Event | LabelledRequest | Sequence[Item]

_USERS = 20


def shop_entries(items: tuple[Item, ...], seed: int, visits: int, *, users: int = _USERS) -> Iterator[Entry]:
    """What a training set is built from: the items, then each list with its labels, and the events that followed.

    Examples
    --------
    >>> from rerank_simulator.feature_benchmark.stream import generate_items
    >>> entries = list(shop_entries(generate_items(30, seed=1), seed=1, visits=2))
    >>> len(entries[0]), type(entries[1]).__name__, type(entries[2]).__name__
    (30, 'LabelledRequest', 'Event')
    """
    yield items
    for visit in itertools.islice(ShopStream(users, items, seed).visits(), visits):
        yield visit.labelled()
        yield from visit.events


def train_shop_bundle(spec: FeatureSpec, items: tuple[Item, ...], seed: int, *, visits: int, epochs: int) -> Bundle:
    """Train the model on one stream, stop by another, and pack it with its features.

    Parameters
    ----------
    spec
        The ready spec ``edgerec``.
    items
        Of the shop.
    seed
        Of the streams and of the weights.
    visits
        Lists to learn from; a quarter as many to stop by.
    epochs
        Passes over the lists at most.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    """
    try:
        from rerank_models.export import export_onnx
        from rerank_models.train import TrainOptions, train_model
        from rerank_models.zoo import TwoStreams
    except ImportError as error:
        raise MissingExtraError("training the model of the benchmark", "train") from error

    def lists(number: int, count: int) -> TrainingSet:
        return build_training_set(spec, shop_entries(items, number, count))

    training, validation = lists(seed + 1, visits), lists(seed + 2, visits // 4)
    options = TrainOptions(epochs=epochs, patience=3, seed=seed)
    result = train_model(TwoStreams, spec, training, validation, options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edgerec.onnx"
        export_onnx(result.model, path)
        converted = convert(path, expose_head=True)
    facts = {
        "data": f"generated, seed {seed}",
        "training_lists": training.lists,
        "validation_ndcg10": round(result.validation_ndcg10[result.best_epoch], 6),
    }
    return Bundle.build("edgerec-generated", converted, spec, facts)
