"""A fresh process that scores with a stored model and a stored image loads no compiler and no training framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine import load
from rerank_engine.model import Model

HEAVY = (
    "numba",
    "llvmlite",
    "torch",
    "onnx",
    "onnxruntime",
    "scipy",
    "pydantic",
    "sqlite_utils",
    "rerank_engine.codegen.compile",
)

SCRIPT = """
import json, sys
import numpy as np
from rerank_engine import load
engine = load(sys.argv[1], cache_dir=sys.argv[2])
x = np.arange(12, dtype=np.float32).reshape(3, 4)
scores = engine.run({engine.inputs[0].name: x})
print(json.dumps([engine.backend, engine.backend_reason, scores.tolist(), sorted(sys.modules)]))
"""


def run(*arguments: str, script: str = SCRIPT) -> Any:
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    return json.loads(result.stdout)


def test_scoring_loads_nothing_heavy(tools: Any, tmp_path: Path) -> None:
    b = tools.GraphBuilder()
    x = b.input("float32", "N", 4)
    hidden = b.node("MatMul", x, b.constant(np.eye(4) / 8), b.constant(np.ones(4)), activation="Sigmoid")
    model = Model(b.output(b.node("ReduceSum", hidden, axes=(1,), keepdims=0)).finish())
    path, images = tmp_path / "m.rrm", tmp_path / "images"
    model.save(path)
    engine = load(path, cache_dir=images)
    assert engine.backend_reason == "compiled for this machine"
    expected = engine.run({x: np.arange(12, dtype=np.float32).reshape(3, 4)})

    backend, reason, scores, modules = run(str(path), str(images))
    assert (backend, reason) == ("cpu", "stored machine code")
    np.testing.assert_array_equal(np.array(scores, np.float32), expected)
    assert [name for name in HEAVY if name in modules] == []

    reason, modules = run(
        str(path),
        str(tmp_path / "other"),
        script=SCRIPT.replace("scores.tolist(), ", "").replace("engine.backend, ", ""),
    )
    assert reason == "compiled for this machine"
    assert "llvmlite" in modules
    assert not {"numba", "torch", "onnx"} & set(modules)


def test_importing_the_package_costs_nothing() -> None:
    modules = run(script="import json, sys, rerank_engine; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in ("numpy", *HEAVY) if name in modules] == []
