"""TensorFlow SavedModels to ONNX through tf2onnx, in a process of their own.

TensorFlow takes seconds to import, logs to the console and brings 1.3 GB of libraries of its own. So it runs in a
child process that converts, runs the SavedModel on samples, and ends; nothing of it enters this process. The child
may be another interpreter, for environments that TensorFlow cannot share: name it with ``python`` or the environment
variable ``RERANK_TENSORFLOW_PYTHON``.

Loading a SavedModel runs operators that the file names, which can read and write files: convert only files that
you trust.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.importers.agreement import Sample, check_agreement

if TYPE_CHECKING:
    import onnx

__all__ = ["is_saved_model", "saved_model_to_onnx"]

PYTHON_VARIABLE = "RERANK_TENSORFLOW_PYTHON"
"""Environment variable with the interpreter that has TensorFlow."""

_CHECKED_LENGTHS = (1, 2, 7, 33)
_MARKS = ("saved_model.pb", "saved_model.pbtxt")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def is_saved_model(path: str | Path) -> bool:
    """Whether a path is the folder of a SavedModel.

    Examples
    --------
    >>> is_saved_model("no/such/folder")
    False
    """
    return any((Path(path) / mark).is_file() for mark in _MARKS)


def saved_model_to_onnx(
    path: str | Path,
    *,
    candidates: str = "N",
    signature: str | None = None,
    dimensions: Mapping[str, str] | None = None,
    opset: int = 18,
    python: str | Path | None = None,
    timeout_s: float = 600,
) -> onnx.ModelProto:
    """Convert a SavedModel and compare the result with TensorFlow.

    Inputs and outputs have the names of the signature. The first dimension of an input, where it varies, counts
    candidates unless ``dimensions`` says otherwise.

    Parameters
    ----------
    path
        Folder of the SavedModel.
    candidates
        Name of the dimension that counts candidates.
    signature
        Key of the signature to convert, needed when there are several.
    dimensions
        Input name to the name of its first dimension, for inputs whose varying first dimension does not count
        candidates, such as the steps of a history.
    opset
        Version of ONNX's operators.
    python
        Interpreter with TensorFlow and tf2onnx; by default the variable ``RERANK_TENSORFLOW_PYTHON``, else the one
        that runs this.
    timeout_s
        Seconds after which the conversion is ended.

    Returns
    -------
    onnx.ModelProto
        Agrees with TensorFlow at 1, 2, 7 and 33 candidates.

    Raises
    ------
    ConversionError
        No SavedModel, no such signature, TensorFlow or tf2onnx fails, or the result computes something else.
    MissingExtraError
        TensorFlow or tf2onnx is not installed.

    Examples
    --------
    >>> saved_model_to_onnx("no/such/folder")
    Traceback (most recent call last):
    rerank_engine.errors.ConversionError: no/such/folder is no SavedModel: it holds no saved_model.pb
    """
    folder = Path(path)
    if not is_saved_model(folder):
        raise ConversionError(f"{path} is no SavedModel: it holds no {_MARKS[0]}")
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("reading SavedModels", "tensorflow") from error
    named = dict(dimensions or {})
    request = {
        "path": str(folder.resolve()),
        "signature": signature,
        "opset": opset,
        "lengths": _CHECKED_LENGTHS,
        "dimensions": named,
        "candidates": candidates,
    }
    with tempfile.TemporaryDirectory(prefix="rerank-savedmodel-") as place:
        answer = _run(Path(place), request, python, timeout_s)
        _check_answer(answer, signature, named)
        model = onnx.load(str(Path(place) / "model.onnx"))
        with np.load(Path(place) / "samples.npz") as archive:
            recorded = dict(archive)
    _name_dimensions(model, candidates, named)
    samples = [_sample(recorded, count) for count in _CHECKED_LENGTHS]
    missing = set(samples[0].expected) - {output.name for output in model.graph.output}
    if missing:
        raise ConversionError(f"tf2onnx lost the output {min(missing)!r}")
    check_agreement(model, samples, "the SavedModel")
    return model


def _run(place: Path, request: Mapping[str, Any], python: str | Path | None, timeout_s: float) -> dict[str, Any]:
    """Run the worker in a folder of its own and read its answer."""
    interpreter = str(python or os.environ.get(PYTHON_VARIABLE) or sys.executable)
    source = Path(__file__).with_name("tensorflow_worker.py").read_text(encoding="utf-8")
    log = place / "log.txt"
    try:
        with log.open("wb") as file:
            subprocess.run(
                [interpreter, "-c", source, json.dumps(request)],
                cwd=place,
                env={**os.environ, **_QUIET},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
    except OSError as error:
        raise ConversionError(f"cannot start the interpreter {interpreter}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"TensorFlow did not finish in {timeout_s:g} s; give more: timeout_s=…") from error
    written = place / "answer.json"
    if not written.exists():
        raise ConversionError(f"TensorFlow ended without an answer; its last words: {_tail(log)}")
    answer: dict[str, Any] = json.loads(written.read_text())
    if "missing" in answer and interpreter != sys.executable:
        raise ConversionError(f"{interpreter} cannot import {answer['missing']}: {answer['message']}")
    if "missing" in answer:
        raise MissingExtraError("reading SavedModels", "tensorflow")
    if "error" in answer:
        raise ConversionError(f"TensorFlow cannot convert the SavedModel: {' '.join(answer['error'].split())[:500]}")
    return answer


def _check_answer(answer: Mapping[str, Any], signature: str | None, dimensions: Mapping[str, str]) -> None:
    if "signatures" in answer:
        keys = ", ".join(answer["signatures"]) or "none"
        if signature is not None:
            raise ConversionError(f"no signature is called {signature!r}; signatures: {keys}")
        raise ConversionError(f"the SavedModel has not one signature but {keys}; say which one: signature=…")
    if "key" not in answer:
        listed = ", ".join(f"{name}: {text}" for name, text in answer["inputs"].items())
        raise ConversionError(f"inputs of text or of unknown rank are not supported: {listed}")
    unknown = set(dimensions) - set(answer["inputs"])
    if unknown:
        raise ConversionError(f"no input is called {min(unknown)!r}; inputs: {', '.join(answer['inputs'])}")


def _tail(log: Path) -> str:
    return " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-300:] or "none"


def _name_dimensions(model: onnx.ModelProto, candidates: str, dimensions: Mapping[str, str]) -> None:
    """Give varying dimensions their names; tf2onnx makes up a new one for each."""
    for entry in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                first = dimensions.get(entry.name, candidates)
                dim.dim_param = first if axis == 0 else f"{entry.name}_{axis}"
    # Shapes between operators hold the made-up names; they are only notes.
    model.graph.ClearField("value_info")


def _sample(recorded: Mapping[str, Any], count: int) -> Sample:
    def part(kind: str) -> dict[str, Any]:
        start = f"{count}/{kind}/"
        return {name.removeprefix(start): array for name, array in recorded.items() if name.startswith(start)}

    return Sample(count, part("in"), part("out"))
