"""Each model in each peer's format, and what could not be converted, with the reason.

Files are made once and kept. The functions return, by model, the path that a peer loads, in which ``{N}`` stands
for the number of candidates where there is a file for each, and reasons by model.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from environments import python_of
from make_models import export
from model_definitions import DEFINITIONS, build, example

SIZES = (1, 10, 50, 200, 1000)
MNN_STATIC = {"edgerec"}
"""MNN gives wrong scores for a GRU over a list whose length varies; a file for each length is right."""

_HERE = Path(__file__).resolve().parent
_TIMEOUT_S = 1800
_NCNN_COMPLAINTS = ("ignore", "not supported", "unsupport", "fail", "error")
_TORCHSCRIPT_TYPES = {torch.float32: "f32", torch.int64: "i64"}


@dataclass
class Converted:
    """What one peer can load.

    Attributes
    ----------
    models
        Path by model; ``{N}`` in it stands for the number of candidates.
    reasons
        Why not, by ``model`` or ``model N=size``.
    """

    models: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def onnx_files(models: Path, names: Sequence[str]) -> Converted:
    """Models for peers that read ONNX."""
    return Converted({name: str(models / f"{name}.onnx") for name in names})


def torchscript(out: Path) -> Converted:
    """Trace each model and store it."""
    made = Converted()
    for name in DEFINITIONS:
        path = out / f"{name}.pt"
        try:
            _once(path, lambda partial, name=name: torch.jit.trace(build(name), _example(name, 50)).save(str(partial)))
            made.models[name] = str(path)
        except Exception as error:  # whatever PyTorch raises is the reason that is told
            made.reasons[name] = _reason(error)
    return made


def litert(out: Path, environment: Path) -> Converted:
    """A file for each model and number of candidates, by litert-torch in its own environment."""
    command = [str(python_of(environment)), str(_HERE / "convert_litert.py"), "--out", str(out)]
    command += ["--sizes", ",".join(map(str, SIZES)), *DEFINITIONS]
    made = Converted()
    try:
        if not all((out / f"{name}_{size}.tflite").exists() for name in DEFINITIONS for size in SIZES):
            made.reasons = dict(json.loads(_run(command).stdout.splitlines()[-1]))
    except Exception as error:
        made.reasons = dict.fromkeys(DEFINITIONS, _reason(error))
    for name in DEFINITIONS:
        if any((out / f"{name}_{size}.tflite").exists() for size in SIZES):
            made.models[name] = str(out / f"{name}_{{N}}.tflite")
    return made


def mnn(out: Path, models: Path, environment: Path) -> Converted:
    """One file a model, or one for each number of candidates where a varying one goes wrong."""
    made = Converted()
    for name in DEFINITIONS:
        if name not in MNN_STATIC:
            try:
                _mnn(models / f"{name}.onnx", out / f"{name}.mnn", environment)
                made.models[name] = str(out / f"{name}.mnn")
            except Exception as error:
                made.reasons[name] = _reason(error)
            continue
        for size in SIZES:
            source = out / f"{name}_{size}.onnx"
            try:
                _once(source, lambda partial, name=name, size=size: export(name, partial, fixed_size=size))
                _mnn(source, out / f"{name}_{size}.mnn", environment)
                made.models[name] = str(out / f"{name}_{{N}}.mnn")
            except Exception as error:
                made.reasons[f"{name} N={size}"] = _reason(error)
    return made


def _mnn(source: Path, path: Path, environment: Path) -> None:
    def run(partial: Path) -> None:
        done = _run([str(python_of(environment)), str(_HERE / "convert_mnn.py"), str(source), str(partial)])
        if not partial.exists():
            raise RuntimeError(_last_line(done))

    _once(path, run)


def ncnn(out: Path, environment: Path, traced: Converted) -> Converted:
    """Through pnnx from TorchScript, with two example lengths so that it keeps the list's length open."""
    made = Converted()
    programs = list(environment.glob("lib*/**/pnnx/**/pnnx" + (".exe" if os.name == "nt" else "")))
    programs = [path for path in programs if path.is_file()]
    for name in DEFINITIONS:
        path = out / f"{name}.ncnn.param"
        try:
            if name not in traced.models:
                raise RuntimeError("no TorchScript to convert from")
            if not programs:
                raise RuntimeError("pnnx is not installed")
            if not path.exists():
                _pnnx(programs[0], Path(traced.models[name]), name, out)
            if unknown := _unknown_layers(path):
                raise RuntimeError(f"pnnx left layers that ncnn does not know: {', '.join(unknown)}")
            made.models[name] = str(path)
        except Exception as error:
            made.reasons[name] = _reason(error)
    return made


def _pnnx(program: Path, source: Path, name: str, out: Path) -> None:
    # It writes beside its source, under names of its own.
    copy = out / source.name
    shutil.copyfile(source, copy)
    shapes = [
        ",".join(f"{list(x.shape)}{_TORCHSCRIPT_TYPES[x.dtype]}".replace(" ", "") for x in _example(name, size))
        for size in (50, 20)
    ]
    program.chmod(program.stat().st_mode | 0o111)
    words = [copy.name, f"inputshape={shapes[0]}", f"inputshape2={shapes[1]}", "fp16=0"]
    done = _run([str(program), *words], folder=out)
    if not (out / f"{name}.ncnn.param").exists():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        told = [line for line in lines if any(word in line.lower() for word in _NCNN_COMPLAINTS)]
        raise RuntimeError((told or lines or ["pnnx wrote nothing"])[-1])


def _unknown_layers(param: Path) -> list[str]:
    """Layers that pnnx passed through under PyTorch's names."""
    kinds = [line.split()[0] for line in param.read_text(encoding="utf-8").splitlines()[2:] if line.split()]
    return sorted({kind for kind in kinds if "." in kind or "::" in kind or kind[0].islower()})


def lightgbm_text(models: Path) -> Converted:
    """LightGBM's own format."""
    return Converted({"lambdamart": str(models / "lambdamart.txt")})


def lleaves(out: Path, models: Path, environment: Path) -> Converted:
    """Compile the trees once; the object lies beside a copy of the text, where the worker looks for it."""
    path = out / "lambdamart.txt"
    code = "import sys, lleaves\nmodel = lleaves.Model(sys.argv[1])\nmodel.compile(cache=sys.argv[2])\n"
    try:
        if not path.with_suffix(".o").exists():
            shutil.copyfile(models / "lambdamart.txt", path)
            _once(
                path.with_suffix(".o"),
                lambda partial: _run([str(python_of(environment)), "-c", code, str(path), str(partial)]),
            )
        return Converted({"lambdamart": str(path)})
    except Exception as error:
        return Converted(reasons={"lambdamart": _reason(error)})


def _example(name: str, size: int) -> tuple[torch.Tensor, ...]:
    return tuple(example(name, size).values())


def _once(path: Path, make: Callable[[Path], object]) -> None:
    """Make a file unless it is there; a half-written one is never taken for it."""
    if path.exists():
        return
    partial = path.with_name("partial_" + path.name)
    partial.unlink(missing_ok=True)
    make(partial)
    if partial.exists():
        partial.rename(path)


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {_last_line(done)}")
    return done


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
