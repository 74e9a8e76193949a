"""``rerank run``: every line is answered or refused, nothing stops the stream, and the state outlives it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rerank_sdk.bundle import Bundle
from rerank_sdk.cli import app
from rerank_sdk.reranker import Reranker


@pytest.fixture(autouse=True)
def _cache(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_CACHE_DIR", str(kit.cache_dir))


@pytest.fixture
def bundle_file(bundle: Bundle, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.rrb"
    bundle.save(path)
    return path


class Pipe:
    """The command with a state of its own."""

    def __init__(self, bundle_file: Path, state: Path) -> None:
        self.words = ["run", "--bundle", str(bundle_file), "--state", str(state)]

    def result(self, *lines: Any, options: tuple[str, ...] = ()) -> Result:
        content = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        return CliRunner().invoke(app, [*self.words, *options], input=content)

    def answers(self, *lines: Any, exit_code: int = 0) -> list[dict[str, Any]]:
        result = self.result(*lines, options=("--json",))
        assert result.exit_code == exit_code, result.stderr
        assert result.stderr == ""
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def pipe(bundle_file: Path, tmp_path: Path) -> Pipe:
    return Pipe(bundle_file, tmp_path / "state")


def as_line(key: str, value: Any) -> dict[str, Any]:
    return {key: value.model_dump(mode="json")}


def test_a_ranking_is_the_one_of_the_library(pipe: Pipe, kit: Any, bundle: Bundle, tmp_path: Path) -> None:
    events = [kit.event(1), kit.event(4, "like", after_s=5)]
    request = kit.request(id="r1", context={"hour": 9})
    items = {"items": [item.model_dump(mode="json") for item in kit.items]}
    (found,) = pipe.answers(items, *(as_line("event", event) for event in events), as_line("request", request))
    with Reranker.open(tmp_path / "other", bundle, deadline_ms=None, cache_dir=kit.cache_dir) as reranker:
        reranker.remember(kit.items)
        reranker.track(events)
        expected = dict(reranker.rerank(request).as_dict())
    ranking = found["ranking"]
    assert (found["line"], ranking.pop("user"), ranking.pop("request")) == (4, "ann", "r1")
    assert ranking.pop("timings").keys() == expected.pop("timings").keys()  # type: ignore[attr-defined]
    assert ranking == expected
    assert ranking["fallback"] is None
    assert ranking["order"] != sorted(ranking["order"])


def test_the_state_outlives_the_command(pipe: Pipe, kit: Any) -> None:
    events = [as_line("event", kit.event(number, after_s=number)) for number in range(3)]
    assert pipe.answers({"items": [item.model_dump(mode="json") for item in kit.items]}, *events) == []
    again = pipe.result(*events)
    assert again.stderr.startswith("0 new events, 0 lists, 0 bad lines")
    assert pipe.answers({"forget": "ann"}) == [{"line": 1, "forget": {"user": "ann", "rows": 3}}]
    assert pipe.result(*events).stderr.startswith("3 new events")


def test_personalise(pipe: Pipe) -> None:
    (found,) = pipe.answers({"personalise": "ann"})
    assert found["personalise"]["user"] == "ann"
    assert (found["personalise"]["accepted"], found["personalise"]["loss_before"]) == (False, None)


DEEP = b"[" * 100_000

BAD: list[tuple[Any, str]] = [
    (b"nonsense", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (DEEP, "not JSON"),
    (b'{"event": NaN}', "NaN is no JSON number"),
    (b"9" * 5_000, ""),
    ([], "got list"),
    ({}, "one key"),
    ({"event": {}, "items": []}, "one key"),
    ({"frobnicate": 1}, "unknown key 'frobnicate'"),
    ({"event": []}, "expected an object"),
    ({"event": {"user": "ann", "item": "i", "kind": "click"}}, "time_ms"),
    ({"event": {"user": "ann", "item": "i", "kind": "click", "time_ms": 1, "colour": "red"}}, "colour"),
    ({"event": {"self": 1}}, ""),
    ({"event": {"user": "\ud800", "item": "i", "kind": "click", "time_ms": 1}}, ""),
    ({"request": {"user": "ann", "time_ms": 1, "candidates": "abc"}}, "candidates"),
    ({"request": {"user": "ann", "time_ms": 1, "candidates": [{"id": "a"}], "scores": []}}, "scores"),
    ({"items": {}}, "expected a list"),
    ({"items": [1]}, "expected an object"),
    ({"items": [{"id": "a", "embedding": [1.0]}]}, "embedding"),
    ({"personalise": ""}, "user id"),
    ({"personalise": 3}, "user id"),
    ({"forget": None}, "user id"),
]


def test_bad_lines_are_refused_one_by_one(pipe: Pipe, kit: Any) -> None:
    good = as_line("request", kit.request(3))
    lines = [line for bad, _ in BAD for line in (bad, good)]
    found = pipe.answers(*lines, exit_code=1)
    assert [one["line"] for one in found] == list(range(1, len(lines) + 1))
    rankings = []
    for (bad, expected), refused, ranked in zip(BAD, found[::2], found[1::2], strict=True):
        assert refused.keys() == {"line", "error"}, bad
        assert expected in refused["error"], bad
        assert "Traceback" not in refused["error"]
        assert "\n" not in refused["error"]
        rankings.append((ranked["ranking"]["order"], ranked["ranking"]["scores"]))
    # Bad lines leave no trace: the same list gets the same answer after each of them.
    assert all(ranking == rankings[0] for ranking in rankings)
    result = pipe.result({"forget": "ann"})
    assert json.loads(result.stdout)["forget"]["rows"] == 0


def test_blank_lines_and_a_byte_order_mark_are_nothing(pipe: Pipe) -> None:
    assert pipe.answers(b"", b"   ", b"\r", b'\xef\xbb\xbf{"forget": "x"}\r') == [
        {"line": 4, "forget": {"user": "x", "rows": 0}}
    ]
    assert pipe.answers() == []


def test_a_fallback_is_an_answer(pipe: Pipe, kit: Any) -> None:
    request = kit.request(candidates=[kit.items[0], kit.items[0]])
    (found,) = pipe.answers(as_line("request", request))
    assert found["ranking"]["backend"] == "server"
    assert "twice" in found["ranking"]["fallback"]


def test_a_deadline(pipe: Pipe, kit: Any) -> None:
    result = pipe.result(as_line("request", kit.request()), options=("--deadline-ms", "1e-9"))
    assert result.exit_code == 0
    assert "deadline" in json.loads(result.stdout)["ranking"]["fallback"]


def test_each_answer_comes_before_the_next_line(pipe: Pipe, kit: Any) -> None:
    code = "from rerank_sdk.cli import app; app()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *pipe.words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for line, key in ((as_line("request", kit.request()), "ranking"), (b"?", "error"), ({"forget": "a"}, "forget")):
            process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
            process.stdin.flush()
            assert key in json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == b""
        assert b"1 bad lines" in process.stderr.read()
    assert process.returncode == 1


def test_a_damaged_bundle_ends_it_at_once(pipe: Pipe, bundle_file: Path, tmp_path: Path) -> None:
    bundle_file.write_bytes(bundle_file.read_bytes()[:-30])
    result = pipe.result({"forget": "a"})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "state").exists()


def test_a_model_that_does_not_fit_its_features(kit: Any, tmp_path: Path) -> None:
    fits = kit.bundle()
    other = kit.make_spec().model_copy(update={"dense": kit.make_spec().dense[:-1]})
    Bundle("misfit", fits.model_bytes, other.to_toml()).save(tmp_path / "misfit.rrb")
    result = Pipe(tmp_path / "misfit.rrb", tmp_path / "state").result()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the model reads 'dense'" in result.stderr


def test_a_state_that_cannot_be_written(pipe: Pipe, bundle_file: Path, tmp_path: Path) -> None:
    result = Pipe(bundle_file, bundle_file / "below").result()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be written" in result.stderr or "cannot open" in result.stderr


def test_a_foreign_file_in_place_of_the_store(pipe: Pipe, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "events.db").write_bytes(b"x" * 200)
    result = pipe.result()
    assert (result.exit_code, result.stdout) == (1, "")
    assert (tmp_path / "state" / "events.db").read_bytes() == b"x" * 200


def test_an_export_is_that_of_the_library(pipe: Pipe, kit: Any, bundle: Bundle, tmp_path: Path) -> None:
    event = kit.event(1)
    (found,) = pipe.answers(as_line("event", event), {"export": "ann"})
    with Reranker.open(tmp_path / "other", bundle, deadline_ms=None, cache_dir=kit.cache_dir) as reranker:
        reranker.track(event)
        assert found == {"line": 2, "export": reranker.export("ann")}
