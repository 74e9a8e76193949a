"""Every model of the zoo: shapes, independence of candidates, training, export, and the engine's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rerank_engine import convert, load
from rerank_engine.errors import SpecError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.training_set import TrainingSet
from rerank_models.export import export_onnx
from rerank_models.train import TrainOptions, list_loss, mean_ndcg, score_lists, train_model
from rerank_models.zoo import ZOO, Ranker
from rerank_models.zoo.base import Standardize

OPTIONS = TrainOptions(epochs=30, patience=30, batch_lists=16, learning_rate=5e-3, seed=3)


def make(name: str, spec: FeatureSpec) -> Ranker:
    torch.manual_seed(1)
    return ZOO[name](spec).eval()


def random_inputs(model: Ranker, candidates: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randint(0, 16, blank.shape, generator=generator, dtype=torch.int32)
        if blank.dtype == torch.int32
        else torch.randn(blank.shape, generator=generator)
        for blank in model.example_inputs(candidates)
    )


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("candidates", [1, 2, 9])
def test_a_score_for_each_candidate(name: str, candidates: int, tiny_spec: FeatureSpec) -> None:
    model = make(name, tiny_spec)
    with torch.no_grad():
        assert model(*random_inputs(model, candidates)).shape == (candidates,)


@pytest.mark.parametrize("name", ZOO)
def test_candidates_do_not_see_each_other(name: str, tiny_spec: FeatureSpec) -> None:
    model = make(name, tiny_spec)
    inputs = random_inputs(model, 7)
    with torch.no_grad():
        whole = model(*inputs)
        for row in range(7):
            alone = tuple(
                tensor[row : row + 1] if model.shapes[key].per_candidate else tensor
                for key, tensor in zip(model.input_names, inputs, strict=True)
            )
            torch.testing.assert_close(model(*alone), whole[row : row + 1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ZOO)
def test_batched_scores_are_those_of_each_list(name: str, tiny_spec: FeatureSpec) -> None:
    model = make(name, tiny_spec)
    lists = [random_inputs(model, 6, seed) for seed in range(4)]
    stacked = tuple(torch.stack(parts) for parts in zip(*lists, strict=True))
    with torch.no_grad():
        together = score_lists(model, stacked)
        for number, one in enumerate(lists):
            torch.testing.assert_close(together[number], model(*one), atol=1e-5, rtol=1e-5)


def test_din_ignores_padding(tiny_spec: FeatureSpec) -> None:
    model = make("din", tiny_spec)
    dense, embedding, history, event, mask = random_inputs(model, 5)
    mask = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    changed = history.clone()
    changed[2:] = 99.0
    with torch.no_grad():
        before = model(dense, embedding, history, event, mask)
        torch.testing.assert_close(model(dense, embedding, changed, event, mask), before)


@pytest.mark.parametrize("name", ZOO)
def test_training_learns_a_planted_rule_and_repeats_itself(
    name: str, tiny_spec: FeatureSpec, tiny_data: TrainingSet
) -> None:
    before = mean_ndcg(make(name, tiny_spec), tiny_data)
    first = train_model(name, tiny_spec, tiny_data, tiny_data, OPTIONS)
    assert mean_ndcg(first.model, tiny_data) > max(0.95, before)
    assert first.validation_ndcg10[first.best_epoch] == max(first.validation_ndcg10)
    short = TrainOptions(epochs=2, seed=3)
    one, two = (train_model(name, tiny_spec, tiny_data, tiny_data, short) for _ in range(2))
    assert one.validation_ndcg10 == two.validation_ndcg10


@pytest.mark.parametrize("name", ZOO)
def test_export_and_engine_agree_with_torch(name: str, tiny_spec: FeatureSpec, tmp_path: Path) -> None:
    model = make(name, tiny_spec)
    path = tmp_path / "model.onnx"
    export_onnx(model, path)
    assert b"stack_trace" not in path.read_bytes()
    engine = load(convert(path, expose_head=True), cache_dir=tmp_path)
    assert [value.name for value in engine.outputs] == ["score", "head_input"]
    assert engine.backend == "cpu"
    for candidates in (1, 2, 7, 150):
        inputs = random_inputs(model, candidates, candidates)
        result = engine.run({key: tensor.numpy() for key, tensor in zip(model.input_names, inputs, strict=True)})
        assert isinstance(result, dict)
        with torch.no_grad():
            np.testing.assert_allclose(result["score"], model(*inputs).numpy(), atol=1e-5, rtol=1e-5)
            # The last layer's input times the last layer's weight is the last term of the score.
            head = result["head_input"] @ model.head.weight.detach().numpy()[0]
            assert head.shape == (candidates,)
            if name != "deepfm":
                np.testing.assert_allclose(head + model.head.bias.item(), result["score"], atol=1e-5, rtol=1e-5)


def feature_arrays(candidates: int) -> dict[str, np.ndarray]:
    """What the bundled spec emits for synthetic films and a synthetic user: numbers of the size that models meet."""
    from rerank_simulator.movielens import movielens_spec

    generator = np.random.default_rng(candidates)
    genres = ("Action", "Comedy", "Crime", "Drama", "Horror", "Sci-Fi")

    def film(number: int) -> Item:
        row = generator.standard_normal(32)
        return Item(
            id=f"film-{number}",
            categorical={"decade": f"{1950 + 10 * (number % 5)}s"},
            multi_categorical={"genres": tuple(generator.choice(genres, 2, replace=False).tolist())},
            numeric={"popularity": float(generator.uniform(0, 6)), "mean_rating": float(generator.uniform(1, 5))},
            embedding=tuple((row / np.linalg.norm(row)).tolist()),
        )

    films = [film(number) for number in range(max(candidates, 40))]
    pipeline = FeaturePipeline(movielens_spec())
    pipeline.remember(films)
    for step in range(40):
        rating = float(generator.integers(1, 6))
        kind = "like" if rating >= 4 else "click" if rating == 3 else "dislike"
        pipeline.update(Event(user="u", item=films[step].id, kind=kind, value=rating, time_ms=60_000 * step))
    scores = sorted(generator.uniform(-2, 3, candidates).tolist(), reverse=True)
    request = Request(user="u", candidates=films[:candidates], scores=scores, time_ms=2_400_000)
    return pipeline.emit(request).arrays


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("candidates", [0, 1, 2, 7, 50, 100, 1000])
def test_bundled_models_match_onnxruntime(name: str, candidates: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    import onnxruntime

    path = Path(__file__).parent / "onnx" / f"movielens_{name}.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    engine = load(convert(path), cache_dir=tmp_path_factory.getbasetemp() / "images")
    assert engine.backend == "cpu"
    arrays = feature_arrays(candidates)
    inputs = {value.name: arrays[value.name] for value in engine.inputs}
    expected = session.run(None, inputs)[0]
    scores = engine.run(inputs)
    assert isinstance(scores, np.ndarray)
    assert scores.shape == expected.shape == (candidates,)
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=0)


def test_loss_of_a_list_by_hand() -> None:
    scores = torch.tensor([[1.0, 2.0, 0.5, 9.0]])
    labels = torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True, False]])
    logs = np.log(np.exp([1.0, 2.0, 0.5]) / np.exp([1.0, 2.0, 0.5]).sum())
    assert list_loss(scores, labels, mask).item() == pytest.approx(-(logs[0] + logs[2]) / 2, rel=1e-6)


def test_standardize_drops_constant_columns_and_limits_outliers() -> None:
    layer = Standardize(2)
    layer.fit(torch.tensor([[1.0, 3.0], [3.0, 3.0], [5.0, 3.0]]))
    out = layer(torch.tensor([[3.0, 99.0], [1e9, 3.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0], [8.0, 0.0]]))


def test_a_spec_without_the_arrays_is_refused() -> None:
    spec = FeatureSpec.from_toml('name = "bare"\n[[dense]]\nkind = "server_rank"\nname = "rank"\n')
    with pytest.raises(SpecError, match="DIN needs the feature arrays"):
        ZOO["din"](spec)
