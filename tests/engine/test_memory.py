"""Resident memory: many calls of any length, and many engines made and dropped, leave none behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc
import resource
import sys

import numpy as np
from rerank_engine.graph import Dim, Graph, Node, Value
from rerank_engine.model import Model
from rerank_engine.runtime import load

def peak_bytes():
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

def model():
    graph = Graph("attention", inputs=["x"], outputs=["y"])
    n = Dim("N")
    shapes = {"x": (n, 8), "t": (8, n), "s": (n, n), "p": (n, n), "y": (n, 8)}
    graph.values |= {name: Value(name, "float32", shape) for name, shape in shapes.items()}
    graph.nodes += [
        Node("Transpose", "turn", ("x",), ("t",), {"perm": (1, 0)}),
        Node("MatMul", "score", ("x", "t"), ("s",)),
        Node("Softmax", "share", ("s",), ("p",)),
        Node("MatMul", "mix", ("p", "x"), ("y",)),
    ]
    return Model(graph)

random = np.random.default_rng(0)
engine = load(model(), cache_dir=sys.argv[1])
x = random.normal(size=(60, 8)).astype(np.float32)
for n in (60, 0, 1, 33):
    engine.run({"x": x[:n]})
before = peak_bytes()
for n in random.integers(0, 61, 100_000):
    engine.run({"x": x[:n]})
calls = peak_bytes() - before
inputs, out = {"x": x}, np.empty((60, 8), np.float32)
found = []
for _ in range(8):
    start = sys.getallocatedblocks()
    for _ in range(500):
        engine.run(inputs, out=out)
    found.append(sys.getallocatedblocks() - start)
blocks = min(found)
for _ in range(20):
    load(model(), cache_dir=sys.argv[1]).run({"x": x})
gc.collect()
before = peak_bytes()
for _ in range(300):
    load(model(), cache_dir=sys.argv[1]).run({"x": x})
gc.collect()
print(calls, blocks, peak_bytes() - before)
"""


def test_neither_calls_nor_engines_leave_memory_behind(tmp_path: Path) -> None:
    """Peers grow by shape, by session, or by 11 MB a call."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    calls, blocks, engines = map(int, done.stdout.split())
    assert calls < 1 << 20, f"100,000 calls of random length grew the process by {calls} bytes"
    assert blocks <= 1, f"500 calls into the caller's array left {blocks} blocks of memory allocated"
    assert engines < 4 << 20, f"300 engines made and dropped grew the process by {engines} bytes"
