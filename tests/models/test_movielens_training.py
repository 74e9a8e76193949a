"""Training a bundle from a log, from end to end, on a small synthetic one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank_engine import load
from rerank_models.train import TrainOptions
from rerank_sdk.bundle import Bundle
from rerank_simulator.logs import RatingLog
from rerank_simulator.movielens import SPLIT, movielens_spec, train_bundle, training_sets

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def log() -> RatingLog:
    generator = np.random.default_rng(11)
    rows = {}
    for user in range(80):
        for visit in range(3):
            start = 880_000_000_000 + int(generator.integers(0, 60)) * DAY_MS + visit * 4 * DAY_MS
            for place, item in enumerate(generator.choice(40, 6, replace=False).tolist()):
                likes = item % 2 == user % 2
                rows[user, item] = (user, item, 5 if likes else 2, start + 60_000 * place)
    user, item, rating, time_ms = zip(*rows.values(), strict=True)
    return RatingLog.from_rows(
        user,
        item,
        rating,
        time_ms,
        user_ids=[f"u{number}" for number in range(80)],
        item_ids=[f"i{number}" for number in range(40)],
        genres=[(("Drama", "War")[number % 2],) for number in range(40)],
    )


def test_a_bundle_is_trained_exported_converted_and_runs(log: RatingLog, tmp_path: Path) -> None:
    onnx_path = tmp_path / "model.onnx"
    epochs: list[str] = []
    options = TrainOptions(epochs=2, batch_lists=16)
    bundle = train_bundle(
        "mlp", log, options=options, onnx_path=onnx_path, progress=lambda done, total, text: epochs.append(text)
    )
    assert len(epochs) == 2
    assert onnx_path.exists()
    assert bundle.facts["training_lists"] > 0
    assert bundle.facts["options"]["epochs"] == 2
    bundle.save(tmp_path / "model.rrb")
    again = Bundle.read(tmp_path / "model.rrb")
    assert again == bundle
    engine = load(again.model(), cache_dir=tmp_path)
    result = engine.run({"dense": np.zeros((3, len(movielens_spec().dense)), np.float32)})
    assert isinstance(result, dict)
    assert result["score"].shape == (3,)
    assert result["head_input"].shape[0] == 3


def test_training_sets_end_before_the_next_part(log: RatingLog) -> None:
    training, validation = training_sets(log, movielens_spec())
    cuts = [SPLIT.moment_ms(log, share) for share in (SPLIT.embeddings, SPLIT.training, SPLIT.validation)]
    assert training.lists > 0 < validation.lists
    assert cuts[0] <= training.times_ms.min()
    assert training.times_ms.max() + DAY_MS < cuts[1] <= validation.times_ms.min()
    assert validation.times_ms.max() + DAY_MS < cuts[2]
