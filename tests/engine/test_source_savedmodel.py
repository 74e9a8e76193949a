"""SavedModels: TensorFlow's own numbers through ONNX Runtime and the engine; what fails is said.

The folders and the outputs are made by ``data/make_tensorflow_models.py``. TensorFlow runs in a process of its own,
of this interpreter or of the one that ``RERANK_TENSORFLOW_PYTHON`` names.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from rerank_engine import convert, load
from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.importers import tensorflow_worker
from rerank_engine.importers.tensorflow_source import PYTHON_VARIABLE, is_saved_model, saved_model_to_onnx

Array = NDArray[Any]
DATA = Path(__file__).parent / "data"
MODELS = DATA / "saved_models"
NAMES = ("attention", "gru_loop", "wide_deep")


def recorded(name: str, length: int, kind: str) -> dict[str, Array]:
    """Arrays that TensorFlow took or made for a list of a length."""
    start = f"{name}/{length}/{kind}/"
    with np.load(DATA / "saved_models.npz") as archive:
        index, data = json.loads(archive["index"].tobytes()), archive["data"].tobytes()
    return {
        key.removeprefix(start): np.frombuffer(data, np.dtype(dtype), int(np.prod(shape)), place).reshape(shape)
        for key, (dtype, shape, place) in index.items()
        if key.startswith(start)
    }


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=2e-6)


@pytest.fixture(scope="module")
def converted() -> dict[str, onnx.ModelProto]:
    """Each folder, converted once."""
    return {name: saved_model_to_onnx(MODELS / name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_export_computes_what_tensorflow_computes(name: str, converted: Any, tools: Any) -> None:
    for length in (0, 1, 7, 200):
        found = tools.run_onnxruntime(converted[name], recorded(name, length, "in"))
        assert_same(found, recorded(name, length, "out"))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_computes_what_tensorflow_computes(name: str, converted: Any, tmp_path: Path) -> None:
    convert(converted[name]).save(tmp_path / "model.rrm")
    engine = load(tmp_path / "model.rrm", cache_dir=tmp_path)
    for length in (0, 1, 7, 200):
        found = engine.run(recorded(name, length, "in"))
        assert isinstance(found, np.ndarray)
        assert_same({"score": found}, recorded(name, length, "out"))


def test_names_come_from_the_signature_and_the_varying_dimension_counts_candidates(converted: Any) -> None:
    shapes = {
        entry.name: [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        for entry in (*converted["wide_deep"].graph.input, *converted["wide_deep"].graph.output)
    }
    assert shapes == {"item": ["N"], "category": ["N"], "dense": ["N", 4], "score": ["N"]}


def test_a_signature_is_asked_for_by_its_key_and_nothing_reaches_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConversionError, match="no signature is called 'train'; signatures: serving_default"):
        saved_model_to_onnx(MODELS / "wide_deep", signature="train")
    assert tuple(capfd.readouterr()) == ("", "")
    assert "tensorflow" not in sys.modules


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "attention", tmp_path / "damaged")
    place = tmp_path / "damaged" / "saved_model.pb"
    place.write_bytes(place.read_bytes()[:999])
    with pytest.raises(ConversionError, match="TensorFlow cannot convert the SavedModel"):
        saved_model_to_onnx(tmp_path / "damaged")


# --- without TensorFlow -----------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a module of a text in TensorFlow's place, in the child process alone."""

    def put(text: str) -> None:
        (tmp_path / "tensorflow.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.delenv(PYTHON_VARIABLE, raising=False)

    return put


def test_missing_tensorflow_names_the_extra(stand_in: Any) -> None:
    stand_in("raise ImportError('no such thing')")
    with pytest.raises(MissingExtraError, match=r"pip install 'rerank-sdk\[tensorflow\]'"):
        saved_model_to_onnx(MODELS / "attention")


def test_missing_tensorflow_of_another_interpreter_is_said(stand_in: Any, tmp_path: Path) -> None:
    stand_in("raise ImportError('no such thing')")
    other = Path(sys.executable).parent / "." / Path(sys.executable).name
    with pytest.raises(ConversionError, match="cannot import tensorflow: no such thing"):
        saved_model_to_onnx(MODELS / "attention", python=f"{other.parent}/../{other.parent.name}/{other.name}")
    with pytest.raises(ConversionError, match="cannot start the interpreter"):
        saved_model_to_onnx(MODELS / "attention", python=tmp_path / "no_python")


def test_a_process_that_dies_or_hangs_is_reported(stand_in: Any) -> None:
    stand_in("import os, sys; print('out of memory', flush=True); os._exit(9)")
    with pytest.raises(ConversionError, match="ended without an answer; its last words: out of memory"):
        saved_model_to_onnx(MODELS / "attention")
    stand_in("import time; time.sleep(60)")
    with pytest.raises(ConversionError, match=r"did not finish in 0\.5 s"):
        saved_model_to_onnx(MODELS / "attention", timeout_s=0.5)


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    assert is_saved_model(MODELS / "attention")
    assert not is_saved_model(tmp_path)
    with pytest.raises(ConversionError, match=r"is no SavedModel: it holds no saved_model\.pb"):
        saved_model_to_onnx(tmp_path)


def test_ids_of_samples_stay_inside_the_smallest_table(converted: Any) -> None:
    assert tensorflow_worker.id_limits(converted["wide_deep"], onnx) == {"item": 40, "category": 6}
    assert tensorflow_worker.id_limits(converted["attention"], onnx) == {"item": 40, "history": 40}
