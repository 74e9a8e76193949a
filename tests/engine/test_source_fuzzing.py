"""Corrupted sources by the thousand: refused, or models that can be used; and the tools that see the rest see it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from rerank_engine import convert
from rerank_engine.errors import ConversionError
from rerank_engine.importers.onnx_file import MOST_NODES, tensors_of
from rerank_engine.importers.onnx_handlers import HANDLERS
from rerank_engine.importers.tflite import tflite_to_onnx
from rerank_engine.importers.tflite.schema import OPERATORS
from rerank_engine.importers.trees.ubjson import parse_ubjson

HERE = Path(__file__).parent
COMMAND = HERE.parent.parent / "bench" / "fuzz_sources.py"


corpus, json_tree, mutate, onnx_models, onnx_nodes, outcome, protobuf, source, tflite = (
    importlib.import_module(f"source_fuzzing.{name}")
    for name in (
        *("corpus", "json_tree", "mutate", "onnx_models", "onnx_nodes", "outcome", "protobuf", "source", "tflite"),
    )
)
SOURCES = corpus.read_corpus()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzing")


# --- the corpus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", SOURCES, ids=lambda each: f"{each.kind} {each.name}")
def test_every_source_is_sound(each: Any, folder: Path) -> None:
    ended = outcome.examine(each, each.files, folder)
    # Random offsets of embedding bags do not fit their ids.
    assert ended.kind in ((outcome.INPUT_REFUSED,) if "bags " in each.name else (outcome.CONVERTED,)) or (
        "fixed" in each.name and ended.kind == outcome.CONVERTED
    ), ended


def test_the_corpus_has_every_kind_and_most_operators() -> None:
    assert {each.kind for each in SOURCES} == set(source.DEFAULT_KINDS)
    used: set[tuple[str, str]] = set()

    def collect(nodes: Any) -> None:
        for node in nodes:
            used.add((node.domain, node.op_type))
            for entry in node.attribute:
                if entry.HasField("g"):
                    collect(entry.g.node)

    for each in SOURCES:
        if each.kind == source.ONNX:
            model = onnx.ModelProto.FromString(each.files["model.onnx"])
            for holder in (model.graph, *model.functions):
                collect(holder.node)
    assert len(used & set(HANDLERS)) > 0.9 * len(HANDLERS), sorted(set(HANDLERS) - used)


def test_models_of_node_tests_are_sources_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, kind, [4]) for name, kind in (("x", 1), ("shape", 7), ("y", 1))]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:2], values[2:]), ir_version=8)
    arrays = [np.zeros(4, np.float32), np.array([2, 2])]
    case = SimpleNamespace(name="test_of_ours", model=model, data_sets=[(arrays, [])])
    listed = SimpleNamespace(name="test_cast_FLOAT_to_FLOAT16", model=model, data_sets=[(arrays, [])])
    monkeypatch.setattr(onnx_nodes, "node_cases", lambda: [case, listed])
    (each,) = onnx_nodes.sources()
    assert (each.kind, each.name) == (source.ONNX_NODES, "test_of_ours")
    assert outcome.examine(each, each.files, folder).kind == outcome.CONVERTED


def test_taking_sources_apart_loses_nothing() -> None:
    random = Random(0)
    for each in SOURCES:
        content = each.files[each.main]
        if each.kind == source.TFLITE:
            tree = tflite.explode(content)
            assert tflite_to_onnx(tflite.assemble(tree)) == tflite_to_onnx(content)
            assert tflite.explode(tflite.assemble(tree)) == tree == tflite.copied(tree)
        if each.kind == source.XGBOOST_UBJ:
            document = json_tree.arrays_as_lists(parse_ubjson(content))
            written = json_tree.to_ubjson(json_tree.lists_as_arrays(document, random), random)
            assert json_tree.arrays_as_lists(parse_ubjson(written)) == document


# --- cases --------------------------------------------------------------------------------------------------------


def test_corrupted_sources_are_refused_or_become_models(folder: Path) -> None:
    kinds: Counter[str] = Counter()
    for case in range(1300):
        way, _, ended = outcome.run_case(SOURCES, 20240301, case, folder)
        assert ended.kind in outcome.ACCEPTED, f"case {case}, {way}: {ended}"
        kinds[ended.kind] += 1
        kinds[way] += 1
    # The damage reaches all stages, and every way was taken.
    assert kinds[outcome.REFUSED] > 600
    assert kinds[outcome.CONVERTED] > 200
    assert {f"{kind}/{way}" for kind in source.DEFAULT_KINDS for way in mutate.WAYS[kind]} <= set(kinds)


def test_the_whole_way_through_machine_code_in_other_processes() -> None:
    command = [sys.executable, str(COMMAND), "--json", "--count", "200", "--seed", "4", "--compiled-share", "0.3"]
    done = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["failures"], result["cases"]) == (0, 0, 200), done.stdout + done.stderr
    assert result["outcomes"]["converted_compiled"] > 5
    assert sum(sum(kinds.values()) for kinds in result["ways"].values()) == 200


def test_cases_follow_from_seed_and_number(folder: Path) -> None:
    first, again, other = (outcome.run_case(SOURCES, seed, 5, folder)[:2] for seed in (1, 1, 2))
    assert first == again != other


def test_one_case_can_be_repeated_and_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(COMMAND), "--seed", "4", "--case", "17", "--kinds", "xgboost-ubj", "xgboost-json"]
    done = subprocess.run([*command, "--save", str(tmp_path / "kept")], capture_output=True, text=True, check=True)
    few = corpus.read_corpus(["xgboost-ubj", "xgboost-json"])
    way, files, ended = outcome.run_case(few, 4, 17, tmp_path)
    assert json.loads(done.stdout) == {"case": 17, "way": way, "kind": ended.kind, "detail": ended.detail}
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == files


@pytest.mark.parametrize("option", [["--count", "-1"], ["--workers", "0"], ["--kinds", "word2vec"]])
def test_options_that_make_no_sense(option: list[str]) -> None:
    done = subprocess.run([sys.executable, str(COMMAND), *option], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cases" not in done.stdout


def test_damage_is_never_no_damage() -> None:
    random = Random(3)
    for case in range(200):
        each = SOURCES[case % len(SOURCES)]
        _, files = mutate.mutate(each, random)
        assert files != each.files
        assert set(files) == set(each.files)


# --- what no source may do ----------------------------------------------------------------------------------------


def _external(each: Any, place: str, *more: str) -> dict[str, bytes]:
    model = onnx.ModelProto.FromString(each.files["model.onnx"])
    (tensor,) = (tensor for tensor in tensors_of(model) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    size = next(entry.value for entry in tensor.external_data if entry.key == "length")
    del tensor.external_data[:]
    for key, value in (*(("location", entry) for entry in (place, *more)), ("length", size)):
        tensor.external_data.add(key=key, value=value)
    return {**each.files, "model.onnx": model.SerializeToString()}


@pytest.fixture
def external() -> Any:
    (found,) = (each for each in SOURCES if each.name == "external")
    return found


def test_data_beside_the_model_is_read(external: Any, folder: Path) -> None:
    assert outcome.examine(external, _external(external, "weights.bin"), folder).kind == outcome.CONVERTED
    assert outcome.examine(external, _external(external, "./weights.bin"), folder).kind == outcome.CONVERTED


@pytest.mark.parametrize(
    "places", [["../outside.bin"], ["/etc/passwd"], ["weights.bin", "../outside.bin"], ["a/../../outside.bin"], [""]]
)
def test_files_outside_of_the_folder_are_not_read(external: Any, folder: Path, places: list[str]) -> None:
    ended = outcome.examine(external, _external(external, *places), folder)
    assert ended.kind == outcome.REFUSED
    assert "which is not in the model's folder" in ended.detail


def test_a_link_out_of_the_folder_is_not_followed(external: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / outcome.OUTSIDE_NAME)
    ended = outcome.examine(external, _external(external, "link.bin"), tmp_path)
    assert ended.kind == outcome.REFUSED
    assert "which is not in the model's folder" in ended.detail


def test_a_model_in_memory_does_not_name_files(external: Any) -> None:
    with pytest.raises(ConversionError, match="give the path of the model, or load the data into the model first"):
        convert(onnx.ModelProto.FromString(external.files["model.onnx"]))


def test_functions_that_grow_or_never_end_are_refused(folder: Path) -> None:
    random, seen = Random(1), Counter[str]()
    (each,) = (each for each in SOURCES if each.name == "perceptron")
    for _ in range(60):
        model = onnx.ModelProto.FromString(each.files["model.onnx"])
        onnx_models.calls(model, random)
        ended = outcome.examine(each, {"model.onnx": model.SerializeToString()}, folder)
        assert ended.kind in outcome.ACCEPTED, ended
        # Newer checkers of ONNX find the circle before we do.
        circle = "calls itself" in ended.detail or "Cycle detected" in ended.detail
        seen["circle"] += circle
        for words in ("nested deeper than", f"more than {MOST_NODES} nodes"):
            seen[words] += words in ended.detail
    assert min(seen.values()) > 0, seen


def test_loops_of_a_tflite_file_that_only_count_are_refused() -> None:
    (each,) = (each for each in SOURCES if each.name == "gru_loop")
    tree = tflite.explode(each.files[each.main])
    whole, condition, body = tree["subgraphs"]
    names = [OPERATORS[max(code.get("old_code", 0), code.get("code", 0))] for code in tree["operator_codes"]]
    (loop,) = (entry for entry in whole["operators"] if names[entry.get("code", 0)] == "WHILE")
    limit = condition["operators"][0]["inputs"][1]
    tree["buffers"][condition["tensors"][limit]["buffer"]]["data"] = (1000).to_bytes(4, "little")
    counts = [entry for entry in body["operators"] if entry["outputs"][0] in body["outputs"][:2]]
    for inner in (0, 3, 4):
        counting = {**tflite.copied(body), "operators": tflite.copied(counts)}
        counting["outputs"] = [*body["outputs"][:2], 2, 3, 4]
        if inner:
            one, first = counts[0]["inputs"][1], len(counting["tensors"])
            counting["tensors"] += tflite.copied(counting["tensors"][:5])
            again = {**tflite.copied(loop), "inputs": [one, one, 2, 3, 4], "outputs": [*range(first, first + 5)]}
            again["options"] = {"cond_subgraph_index": 1, "body_subgraph_index": inner}
            counting["operators"].append(again)
        tree["subgraphs"].append(counting)
    loop["options"]["body_subgraph_index"] = 5
    with pytest.raises(ConversionError, match="with its loops written out the model has more than 100000 operators"):
        tflite_to_onnx(tflite.assemble(tree))


@pytest.mark.parametrize("depth", [10**9, -1])
def test_a_depth_of_a_tflite_file_beyond_any_model_is_refused(depth: int) -> None:
    seen = 0
    for each in (each for each in SOURCES if each.kind == source.TFLITE):
        tree = tflite.explode(each.files[each.main])
        names = [OPERATORS[max(code.get("old_code", 0), code.get("code", 0))] for code in tree["operator_codes"]]
        graph = tree["subgraphs"][0]
        for operator in graph["operators"]:
            if names[operator.get("code", 0)] == "ONE_HOT":
                place = graph["tensors"][operator["inputs"][1]]["buffer"]
                tree["buffers"][place]["data"] = depth.to_bytes(4, "little", signed=True)
                seen += 1
                with pytest.raises(ConversionError, match=f"the depth {depth} is outside 0 to"):
                    tflite_to_onnx(tflite.assemble(tree))
    assert seen


# --- the tools ----------------------------------------------------------------------------------------------------


def _first(kind: str) -> Any:
    return next(each for each in SOURCES if each.kind == kind)


def test_an_exception_of_another_kind_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by design")

    each = _first(source.XGBOOST_JSON)
    monkeypatch.setattr(outcome, "evaluate", broken)
    ended = outcome.examine(each, each.files, folder)
    assert ended.kind == outcome.UNTYPED
    assert "ZeroDivisionError: by design" in ended.detail


def test_a_lack_of_memory_behind_a_typed_error_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object, **__: object) -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ConversionError("too large") from error

    each = _first(source.ONNX)
    monkeypatch.setattr(outcome, "convert", hungry)
    assert outcome.examine(each, each.files, folder).kind == outcome.UNTYPED
    monkeypatch.undo()
    most = iter((0, outcome.MOST_GROWTH_BYTES + 1))
    monkeypatch.setattr(outcome, "_most_memory_bytes", lambda: next(most))
    ended = outcome.examine(each, each.files, folder)
    assert ended.kind == outcome.UNTYPED
    assert "of memory were taken" in ended.detail


def test_a_warning_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = _first(source.LIGHTGBM_TEXT)
    monkeypatch.setattr(outcome, "feeds", lambda _: np.array([3e38], np.float32) * np.float32(10))
    ended = outcome.examine(each, each.files, folder)
    assert ended.kind == outcome.UNTYPED
    assert "RuntimeWarning: overflow" in ended.detail


def test_bytes_from_outside_are_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = _first(source.CAFFE_BINARY)
    model = convert(_written(each, folder))
    model.graph.add_constant("stolen", np.frombuffer(outcome.OUTSIDE, np.uint8))
    monkeypatch.setattr(outcome, "convert", lambda *_: model)
    ended = outcome.examine(each, each.files, folder)
    assert ended.kind == outcome.UNSOUND
    assert "outside of the model's folder" in ended.detail


def test_a_model_that_cannot_be_kept_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = _first(source.TFLITE)
    model = convert(_written(each, folder))
    model.graph.metadata["a\0b"] = "c"
    monkeypatch.setattr(outcome, "convert", lambda *_: model)
    ended = outcome.examine(each, each.files, folder)
    assert ended.kind == outcome.UNSOUND
    assert "NUL" in ended.detail


def test_other_numbers_of_machine_code_are_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = _first(source.XGBOOST_UBJ)
    assert outcome.examine(each, each.files, folder, compiled=True).kind == outcome.CONVERTED_COMPILED
    evaluate = outcome.evaluate

    def wrong(*given: Any, **options: Any) -> dict[str, Any]:
        return {name: array + 1 for name, array in evaluate(*given, **options).items()}

    monkeypatch.setattr(outcome, "evaluate", wrong)
    assert outcome.examine(each, each.files, folder, compiled=True).kind == outcome.DISAGREES


def _written(each: Any, folder: Path) -> Path:
    for name, content in each.files.items():
        (folder / name).write_bytes(content)
    return folder / each.main


# --- the mutators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", sorted({change.__name__ for change in onnx_models._CHANGES}))
def test_every_change_of_onnx_models_changes_something(change: str) -> None:
    random = Random(5)
    changed = 0
    for each in SOURCES:
        if each.kind == source.ONNX:
            model = onnx.ModelProto.FromString(each.files["model.onnx"])
            getattr(onnx_models, change)(model, random)
            changed += model.SerializeToString(deterministic=True) != each.files["model.onnx"]
    assert changed > 10


def test_fields_of_messages_stay_in_their_ranges() -> None:
    random = Random(7)
    kinds = Counter[str]()
    for field in onnx.TensorProto.DESCRIPTOR.fields:
        for _ in range(50):
            if field.message_type is None:
                content = protobuf.changed_scalar(None, field, random, ["text"])
                message = onnx.TensorProto()
                if hasattr(getattr(message, field.name), "extend"):
                    getattr(message, field.name).append(content)
                else:
                    setattr(message, field.name, content)
                kinds[field.name] += message.ByteSize() > 0
    assert len(kinds) > 10
