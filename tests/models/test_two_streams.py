"""The model over two behaviour streams: it learns, ignores padding and empty streams, and is the same in the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rerank_engine import convert, load
from rerank_engine.errors import SpecError
from rerank_features import FeaturePipeline, FeatureSpec
from rerank_features.ready import ready_spec
from rerank_features.training_set import TrainingSet, build_training_set
from rerank_models.export import export_onnx
from rerank_models.train import TrainOptions, mean_ndcg, train_model
from rerank_models.zoo import TwoStreams
from rerank_simulator.feature_benchmark.stream import ShopStream, generate_items

SPEC = ready_spec("edgerec")
ITEMS = generate_items(150, seed=1)


def lists(seed: int, count: int) -> TrainingSet:
    def stream() -> Iterator[Any]:
        yield ITEMS
        for visit in itertools.islice(ShopStream(5, ITEMS, seed).visits(), count):
            yield visit.labelled()
            yield from visit.events

    return build_training_set(SPEC, stream())


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return lists(seed=1, count=150)


@pytest.fixture(scope="module")
def trained(data: TrainingSet) -> TwoStreams:
    options = TrainOptions(epochs=12, patience=12, learning_rate=5e-3)
    model = train_model(TwoStreams, SPEC, data, data, options).model
    assert isinstance(model, TwoStreams)
    return model


def one_list(model: TwoStreams, data: TrainingSet, number: int) -> tuple[torch.Tensor, ...]:
    rows = slice(int(data.offsets[number]), int(data.offsets[number + 1]))
    return tuple(
        torch.from_numpy(
            data.per_candidate[name][rows] if model.shapes[name].per_candidate else data.per_list[name][number]
        )
        for name in model.input_names
    )


def test_it_learns_from_the_stream(trained: TwoStreams, data: TrainingSet) -> None:
    torch.manual_seed(0)
    assert mean_ndcg(trained, data) > mean_ndcg(TwoStreams(SPEC), data) + 0.1


def test_padding_and_an_empty_stream_change_nothing(trained: TwoStreams, data: TrainingSet) -> None:
    inputs = list(one_list(trained, data, -2 + data.lists))
    masks = [place for place, name in enumerate(trained.input_names) if name.endswith("_mask")]
    for place in masks:
        inputs[place] = torch.zeros_like(inputs[place])
        inputs[place][:2] = 1
    changed = list(inputs)
    for place in masks:
        for other in (place - 2, place - 1):
            changed[other] = changed[other].clone()
            changed[other][2:] = 7.0
    with torch.no_grad():
        torch.testing.assert_close(trained(*changed), trained(*inputs))
        for place in masks:
            inputs[place] = changed[place] = torch.zeros_like(inputs[place])
        assert torch.isfinite(trained(*inputs)).all()
        torch.testing.assert_close(trained(*changed), trained(*inputs))


def test_the_engine_gives_the_scores_of_torch(trained: TwoStreams, data: TrainingSet, tmp_path: Path) -> None:
    export_onnx(trained, tmp_path / "model.onnx")
    engine = load(convert(tmp_path / "model.onnx"), cache_dir=tmp_path)
    assert engine.backend == "cpu"
    for number in (0, 70, data.lists - 1):  # the first has no history
        inputs = one_list(trained, data, number)
        arrays = {name: tensor.numpy() for name, tensor in zip(trained.input_names, inputs, strict=True)}
        with torch.no_grad():
            np.testing.assert_allclose(engine.run(arrays), trained(*inputs).numpy(), atol=2e-5, rtol=2e-5)


def test_a_spec_without_the_streams_is_refused() -> None:
    with pytest.raises(SpecError, match="TwoStreams needs the feature arrays"):
        TwoStreams(FeatureSpec(name="bare", dense=[{"kind": "list_size", "name": "n"}]))
    assert FeaturePipeline(SPEC).array_shapes()["exposures_mask"] == (50,)
