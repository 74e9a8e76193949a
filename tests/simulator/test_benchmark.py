"""The loop benchmark on a log and a bundle made by hand: what it measures and what it reports. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank_engine.errors import DataError
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_sdk.bundle import Bundle
from rerank_simulator import benchmark
from rerank_simulator.logs import RatingLog
from rerank_simulator.movielens import movielens_spec

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def log() -> RatingLog:
    """Sixty users rate some of forty films over ten weeks, each on two days."""
    generator = np.random.default_rng(7)
    rows = []
    for user in range(60):
        for visit in range(2):
            start = 880_000_000_000 + int(generator.integers(0, 70)) * DAY_MS + visit * 3 * DAY_MS
            for place, item in enumerate(generator.choice(40, 6, replace=False)):
                rows.append((user, int(item), int(generator.integers(1, 6)), start + 60_000 * place))
    user, item, rating, time_ms = zip(*dict.fromkeys(rows), strict=True)
    return RatingLog.from_rows(
        user,
        item,
        rating,
        time_ms,
        user_ids=[f"u{number}" for number in range(60)],
        item_ids=[f"i{number}" for number in range(40)],
        years=[1950 + number for number in range(40)],
        genres=[("Drama", "Comedy", "War")[: 1 + number % 3] for number in range(40)],
    )


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """A linear model over the features of the bundled spec."""
    spec = movielens_spec()
    columns = len(spec.dense)
    graph = Graph("linear", inputs=["dense"], outputs=["score"])
    graph.values["dense"] = Value("dense", "float32", (Dim("N"), columns))
    graph.values["score"] = Value("score", "float32", (Dim("N"), 1))
    weight = graph.add_constant("w", np.linspace(-1, 1, columns, dtype=np.float32).reshape(columns, 1))
    graph.nodes.append(Node("MatMul", "score", ("dense", weight), ("score",)))
    return Bundle.build("linear", Model(graph), spec)


def test_the_report_of_the_loop(
    log: RatingLog, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(benchmark, "LIST_LENGTH", 34)  # forty films, six of which the user knows
    monkeypatch.setattr(benchmark, "WARM_UP", 3)
    seen: list[tuple[int, int]] = []
    report = benchmark.benchmark_loop(
        log, bundle, rounds=12, progress=lambda done, total, _: seen.append((done, total))
    )
    for name in ("track_p50_us", "track_after_rerank_p50_us", "rerank_100_p50_us", "features_p50_us", "scoring_p50_us"):
        assert 0 < report[name] <= report[name.replace("p50", "p99")]
    assert report["rerank_100_p50_us"] > report["features_p50_us"]
    assert report["import_ms"] > 0
    assert (report["backend"], report["bundle"], report["rounds"]) == ("cpu", "linear", 12)
    policies = ["server order", "popularity", "model, no recent events", "model", "model, personalised"]
    assert list(report["ndcg10"]) == policies
    assert all(0 <= one["low"] <= one["mean"] <= one["high"] <= 1 for one in report["ndcg10"].values())
    relative = report["ndcg10"]["model"]["mean"] / report["ndcg10"]["server order"]["mean"] - 1
    assert report["lift_over_server"]["mean"] == pytest.approx(relative)
    assert report["lift_over_server"]["low"] <= relative <= report["lift_over_server"]["high"]
    assert report["lists"] >= report["users"] > 1
    assert seen[-1][0] == seen[-1][1]


def test_a_log_without_full_lists_is_refused(log: RatingLog, bundle: Bundle) -> None:
    with pytest.raises(DataError, match="no list of 100 candidates"):
        benchmark.time_loop([], bundle)
