"""The benchmark of features: it prints what it promises, reads logs, and notices what would be wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rerank_engine.errors import DataError, InputError
from rerank_features import Event, FeaturePipeline, FeatureSpec, Item, Request
from rerank_features.log import EventColumns, ListColumns
from rerank_features.log_features import training_set_from_log
from rerank_features.ready import ready_spec
from rerank_features.training_set import build_training_set
from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app
from rerank_sdk.store import EventStore
from rerank_simulator.feature_benchmark import benchmark_features, kill
from rerank_simulator.feature_benchmark.bundle import shop_entries, train_shop_bundle
from rerank_simulator.feature_benchmark.kill_child import kill_events, kill_items
from rerank_simulator.feature_benchmark.logs import KUAIRAND_FILE, load_input
from rerank_simulator.feature_benchmark.measure import check_same, emit_times, state_bytes_per_user
from rerank_simulator.feature_benchmark.stream import generate_items
from rerank_simulator.logs import RatingLog
from rerank_simulator.movielens import movielens_spec, training_sets

FIGURES = [
    "append_events_per_s",
    "track_p50_us",
    "track_p99_us",
    "emit_100_p50_us",
    "emit_share_of_rerank",
    "naive_ratio",
    "build_events_per_s",
    "state_bytes_per_user",
    "kill_rounds",
    "lost_events",
]


@pytest.fixture(autouse=True)
def _no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster kernels are of no use here, and looking for them takes processors."""
    monkeypatch.setenv("RERANK_SEARCH_S", "0")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine-code")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return train_shop_bundle(ready_spec("edgerec"), generate_items(80, seed=1), seed=1, visits=40, epochs=1)


def test_the_command_prints_its_figures_and_what_they_rest_on() -> None:
    result = CliRunner().invoke(app, ["bench", "features", "--quick", "--kill-rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    assert list(measured) == [*FIGURES, "data", "machine"]
    assert measured["data"] == "generated, seed 1"
    assert (measured["kill_rounds"], measured["lost_events"]) == (1, 0)
    assert all(measured[name] > 0 for name in FIGURES if name != "lost_events")
    assert measured["track_p50_us"] <= measured["track_p99_us"]
    assert 0 < measured["emit_share_of_rerank"] < 1


def test_lost_events_are_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {**dict.fromkeys(FIGURES, 1), "data": "generated, seed 1", "machine": {"processors": 2}}
    monkeypatch.setattr("rerank_simulator.feature_benchmark.benchmark_features", lambda *_, **__: answer)
    result = CliRunner().invoke(app, ["bench", "features"])
    assert result.exit_code == 1
    assert "lost events" in result.stdout
    assert "machine: processors" in result.stdout
    monkeypatch.setitem(answer, "lost_events", 0)
    assert CliRunner().invoke(app, ["bench", "features"]).exit_code == 0


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="rounds: expected a number from 0"):
        benchmark_features(rounds=-1)
    result = CliRunner().invoke(app, ["bench", "features", "--data", "no-such-folder", "--quick"])
    assert result.exit_code == 1
    assert "cannot read no-such-folder" in result.stderr
    assert "the word 'movielens'" in result.stderr


# --- kills


def test_children_are_killed_and_nothing_is_lost(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "_LATEST_KILL_S", 0.4)  # with this seed both children live for 0.2 s
    done: list[int] = []
    result = kill.kill_rounds(bundle, 8, 2, cache, done.append)
    assert (result.rounds, result.lost_events) == (2, 0)
    assert result.acknowledged > 0
    assert done == [1, 2]


def fake_child(write: Callable[[EventStore, int, int], int]) -> Callable[..., int]:
    """A child that writes to the store what it is told to, and acknowledges what it likes."""

    def run(words: list[str], *_: object) -> int:
        state, seed, start = Path(words[0]), int(words[3]), int(words[4])
        with EventStore.open(state / "events.db") as store:
            store.save_items(kill_items(seed))
            return write(store, seed, start)

    return run


def append(store: EventStore, events: list[Event]) -> None:
    store.append_many(events)
    store.flush()


def test_a_lost_event_is_counted(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(store: EventStore, seed: int, start: int) -> int:
        append(store, kill_events(seed, start, start + 7))
        return start + 9

    monkeypatch.setattr(kill, "_killed_child", fake_child(forgetful))
    assert kill.kill_rounds(bundle, 1, 3, cache).lost_events == 6


def test_an_event_that_was_not_sent_is_noticed(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def inventive(store: EventStore, seed: int, start: int) -> int:
        sent = kill_events(seed, start, start + 7)
        append(store, [*sent, sent[-1].model_copy(update={"item": "invented"})])
        return start + 7

    monkeypatch.setattr(kill, "_killed_child", fake_child(inventive))
    with pytest.raises(DataError, match="round 0: the store's 8 events of user-0 are not those that were sent"):
        kill.kill_rounds(bundle, 1, 3, cache)


def test_another_state_is_noticed(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def honest(store: EventStore, seed: int, start: int) -> int:
        append(store, kill_events(seed, start, start + 30))
        return start + 30

    monkeypatch.setattr(kill, "_killed_child", fake_child(honest))
    assert kill.kill_rounds(bundle, 1, 2, cache).lost_events == 0
    scores = kill._scores

    def twice(state: Path, *rest: Any) -> list[bytes]:
        *others, events = rest
        doubled = [event.model_copy(update={"id": f"again {number}"}) for number, event in enumerate(events)]
        return scores(state, *others, [*events, *doubled])

    monkeypatch.setattr(kill, "_scores", twice)
    with pytest.raises(DataError, match="round 0: after 30 events the restarted state differs from a replay"):
        kill.kill_rounds(bundle, 1, 2, cache)


@pytest.mark.parametrize("model", [b"", b"no model at all"])
def test_a_child_that_cannot_work_is_an_error(
    model: bytes, bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill, "_EARLY_SHARE", 0.0)
    broken = Bundle("broken", model, bundle.spec_text)
    with pytest.raises(DataError, match=r"round 0: the child ended by itself, before it was killed: .*Error: .*model"):
        kill.kill_rounds(broken, 1, 1, cache)


# --- measures


def test_a_value_that_differs_is_named() -> None:
    spec = FeatureSpec(
        name="one", dense=[{"kind": "list_size", "name": "size"}, {"kind": "server_rank", "name": "rank"}]
    )
    arrays = FeaturePipeline(spec).emit(Request(user="u", time_ms=0, candidates=[Item(id="a"), Item(id="b")])).arrays
    check_same(spec, arrays, arrays)
    wrong = {"dense": arrays["dense"] + np.array([[0, 0], [0, 0.001]], np.float32)}
    with pytest.raises(DataError, match=r"'dense', column 'rank' at \(1, 1\): the pipeline gives 1.0, the rescan 1.00"):
        check_same(spec, arrays, wrong)


def test_emission_is_timed_beside_the_rescan_and_the_whole(bundle: Bundle, cache: Path) -> None:
    spec, items = ready_spec("edgerec"), generate_items(120, seed=1)
    times = emit_times(spec, bundle, items, 1, rounds=10, naive_rounds=2, history=300, cache=cache)
    assert 0 < times.emit_us < times.naive_us
    assert times.rerank_us > 0


def test_more_events_take_more_memory_and_none_take_nothing_much() -> None:
    spec, items = ready_spec("edgerec"), generate_items(50, seed=1)
    weights = [state_bytes_per_user(spec, items, 1, users=8, events_per_user=count) for count in (1, 200)]
    assert 1_000 < weights[0] < weights[1]


# --- logs

HEAD = (
    "user_id\tvideo_id\tdate\ttime_ms\tis_click\tis_follow\tis_comment\tis_forward\tlong_view\tplay_time_ms\t"
    "duration_ms\tis_profile_enter\n"
)


def log_line(user: int, video: int, time_ms: int, played: int = 4000, duration: int = 8000, **flags: int) -> str:
    values = {"is_follow": 0, "is_comment": 0, "is_forward": 0, "long_view": 0, "is_profile_enter": 0, **flags}
    flag = [values[name] for name in ("is_follow", "is_comment", "is_forward", "long_view")]
    row = [user, video, 20220410, time_ms, 1, *flag, played, duration, values["is_profile_enter"]]
    return "\t".join(map(str, row)) + "\n"


def test_kuairand_becomes_lists_and_events(tmp_path: Path) -> None:
    rows = [log_line(7, video, 1_000_000 + 5_000 * video, long_view=video % 2) for video in range(12)]
    rows += [
        log_line(7, 3, 9_000_000, played=500, duration=0, is_follow=1, is_profile_enter=1),
        log_line(8, 3, 500_000),
        log_line(8, 3, 505_000),
    ]
    (tmp_path / KUAIRAND_FILE).write_text(HEAD + "".join(reversed(rows)))
    given = load_input(tmp_path, seed=1, visits=1)
    assert (given.name, given.spec.name) == (f"KuaiRand, {KUAIRAND_FILE}", "kuaishou")
    sizes = np.diff(given.lists["offsets"]).tolist()
    assert list(zip(given.lists["user"], sizes, strict=True)) == [
        ("8", 1),
        ("8", 1),  # a list has a video once
        ("7", 10),
        ("7", 2),
        ("7", 1),  # half an hour later
    ]
    assert given.lists["label"][2:12].tolist() == [0, 1] * 5
    assert Counter(given.events["kind"]) == {
        "impression": 15,
        "watch": 15,
        "completion": 14,
        "skip": 1,
        "follow": 1,
        "enter_profile": 1,
    }
    assert given.events["value"][given.events["kind"] == "completion"].tolist()[0] == 0.5
    assert given.items[3].numeric == {"duration_s": 8.0}
    events, lists = EventColumns(**given.events), ListColumns(**given.lists)
    data = training_set_from_log(given.spec, items=given.items, events=events, lists=lists)
    assert (data.lists, len(data.labels)) == (5, 15)
    again = load_input(tmp_path / KUAIRAND_FILE, seed=1, visits=1)
    assert again.events["time_ms"].tolist() == given.events["time_ms"].tolist()


def test_columns_of_the_generated_shop_give_what_its_stream_gives() -> None:
    given = load_input(None, seed=1, visits=6)
    entries = list(shop_entries(generate_items(2_000, 1), 1, 6))
    expected = build_training_set(given.spec, entries)
    events, lists = EventColumns(**given.events), ListColumns(**given.lists)
    made = training_set_from_log(given.spec, items=given.items, events=events, lists=lists)
    for name, array in (expected.per_candidate | expected.per_list).items():
        assert (made.per_candidate | made.per_list)[name].tobytes() == array.tobytes(), name


def test_movielens_becomes_the_lists_that_models_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(7)
    rows = [
        (user, int(item), int(generator.integers(1, 6)), 880_000_000_000 + day * 86_400_000 + 60_000 * place)
        for user in range(40)
        for day in generator.choice(70, 2, replace=False).tolist()
        for place, item in enumerate(generator.choice(30, 6, replace=False))
    ]
    names = {"user_ids": [f"u{number}" for number in range(40)], "item_ids": [f"i{number}" for number in range(30)]}
    log = RatingLog.from_rows(*zip(*rows, strict=True), **names)
    monkeypatch.setattr("rerank_simulator.logs.movielens.load_movielens", lambda: log)
    given = load_input("movielens", seed=1, visits=1)
    assert (given.name, given.spec) == ("MovieLens-100K", movielens_spec())
    training, _ = training_sets(log, given.spec)
    events, lists = EventColumns(**given.events), ListColumns(**given.lists)
    built = training_set_from_log(given.spec, items=given.items, events=events, lists=lists)
    assert built.lists == training.lists > 0
    assert built.labels.tobytes() == training.labels.tobytes()
    assert built.times_ms.tolist() == training.times_ms.tolist()
    assert built.per_candidate["dense"].shape == training.per_candidate["dense"].shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id\tvideo_id\n1\t2\n", "columns time_ms, is_follow, .* are missing"),
        (HEAD, "the log has no rows"),
        (HEAD + log_line(1, 2, 3) + "x" + log_line(1, 2, 3), "line 3: .*expected a number"),
        (HEAD + "1\t2\n", "line 2: .*expected a number"),
        (HEAD + log_line(1, 2, 3).replace("8000", "inf"), "line 2: .*expected a number"),
    ],
)
def test_a_damaged_log_is_refused_by_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_input(path, seed=1, visits=1)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read"):
        load_input(tmp_path / "log.tsv", seed=1, visits=1)
