"""Tools of the engine's tests: graphs in a few lines, machine code without a cache, ONNX models and their oracle."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rerank_engine.binding import bind_sizes
from rerank_engine.codegen.compile import compile_graph
from rerank_engine.codegen.target import Target
from rerank_engine.graph import DTYPES, Dim, Graph, Node, Value, concrete, is_per_candidate, shape_attribute
from rerank_engine.kernels.gemm import Tilings
from rerank_engine.ops import lookup
from rerank_engine.reference import evaluate
from rerank_engine.session import MachineCode, Session

Array = NDArray[Any]

TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32; what is smaller counts as zero in compiled code."""

SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3.4e38, -3.4e38, 1e30, -1e30, 88.7, -87.3, 0.5, -0.5, 1.0],
    dtype=np.float32,
)

_ONNX_TYPES = {name: int(helper.np_dtype_to_tensor_dtype(dtype)) for name, dtype in DTYPES.items()}


def _dims(shape: Sequence[Any]) -> tuple[int | Dim, ...]:
    """Read ``"N"`` and ``("N", 3)`` in a shape as candidate dimensions."""
    return tuple(Dim(dim) if isinstance(dim, str) else Dim(*dim) if isinstance(dim, tuple) else dim for dim in shape)


class GraphBuilder:
    """A graph, one call a node; shapes are inferred by the operators."""

    def __init__(self) -> None:
        self.graph = Graph("built")
        self.domains: dict[str, str] = {}
        self._count = itertools.count()

    def input(self, dtype: str, *shape: Any, domain: str = "special") -> str:
        name = f"in{next(self._count)}"
        self.graph.values[name] = Value(name, dtype, _dims(shape))
        self.graph.inputs.append(name)
        self.domains[name] = domain
        return name

    def constant(self, array: Any, dtype: str = "float32") -> str:
        return self.graph.add_constant(f"constant{next(self._count)}", np.asarray(array, DTYPES[dtype]))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        (name,) = self.nodes(op, inputs, 1, **attributes)
        return name

    def nodes(self, op: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> tuple[str, ...]:
        """Add a node with several results."""
        name = f"{op.lower()}{next(self._count)}"
        if "shape" in attributes:
            attributes["shape"] = shape_attribute(_dims(attributes["shape"]))
        names = (name,) if outputs == 1 else tuple(f"{name}_{index}" for index in range(outputs))
        node = Node(op, name, tuple(inputs), names, attributes)
        inferred = lookup(node).infer(node, [self.graph.values[entry] for entry in inputs])
        for made, (dtype, shape) in zip(names, inferred, strict=True):
            self.graph.values[made] = Value(made, dtype, shape)
        self.graph.nodes.append(node)
        return names

    def output(self, *names: str) -> GraphBuilder:
        self.graph.outputs.extend(names)
        return self

    def finish(self) -> Graph:
        self.graph.verify()
        return self.graph

    def feeds(self, candidates: int, seed: int = 0, **sizes: int) -> dict[str, Array]:
        """Make an array for every input, of the domain that it was declared with; ``sizes`` of further dimensions."""
        random = np.random.default_rng(seed)
        return {
            name: _draw(
                random,
                self.graph.values[name].dtype,
                concrete(self.graph.values[name].shape, {"N": candidates, **sizes}),
                self.domains[name],
            )
            for name in self.graph.inputs
        }


def _draw(random: np.random.Generator, dtype: str, shape: tuple[int, ...], domain: str) -> Array:
    if dtype == "bool":
        return random.random(shape) < 0.5
    if dtype not in ("float32", "float64"):
        lowest = 0 if dtype.startswith("u") else -40
        low, high = (0, int(domain)) if domain.isdigit() else (lowest, 40)
        array = random.integers(low, high, size=shape, dtype=DTYPES[dtype])
        if domain == "special":
            limits = np.iinfo(DTYPES[dtype])
            places = random.random(shape) < 0.1
            array[places] = random.choice(np.array([limits.min, limits.max, 0], DTYPES[dtype]), size=int(places.sum()))
        return array
    array = random.normal(0, 2, size=shape).astype(DTYPES[dtype])
    if domain == "special":
        places = random.random(shape) < 0.3
        array[places] = random.choice(SPECIAL, size=int(places.sum()))
    if domain == "infinite":
        places = random.random(shape) < 0.02
        array[places] = random.choice(SPECIAL[2:5], size=int(places.sum()))
    return array


class Compiled:
    """Machine code of a graph, called without the checks and the cache of an engine."""

    def __init__(self, graph: Graph, target: Target | None = None, tilings: Tilings | None = None) -> None:
        self.graph = graph
        self.image = compile_graph(graph, target, tilings)
        self._session = Session(MachineCode(self.image))

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        sizes = bind_sizes([self.graph.values[name] for name in self.graph.inputs], feeds, self.graph.maxima)
        return self._session.run(feeds, sizes)


def flush(array: Array) -> Array:
    """Replace denormal float32 by zero, as compiled code sees them."""
    if array.dtype != np.float32:
        return array
    return np.where(np.abs(array) < TINY, np.copysign(np.float32(0), array), array)


def expect(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Evaluate in float64 what compiled code sees."""
    flushed = {name: flush(array) for name, array in feeds.items()}
    return evaluate(graph, flushed, precise=True)


def assert_close(
    actual: Array, expected: Array, label: str, tolerance: float = 3e-7, absolute: float = 2 * TINY
) -> None:
    """Compare exactly for integers, within the tolerances for float32; NaN and infinities must match.

    For float64 the tolerances are a millionth of those.
    """
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, expected {expected.shape}"
    if actual.dtype == np.float64:
        assert expected.dtype == np.float64, f"{label}: dtype float64, expected {expected.dtype}"
        np.testing.assert_allclose(actual, expected, tolerance * 1e-6, absolute * 1e-6, equal_nan=True, err_msg=label)
        return
    if actual.dtype != np.float32:
        assert actual.dtype == expected.dtype, f"{label}: dtype {actual.dtype}, expected {expected.dtype}"
        np.testing.assert_array_equal(actual, expected, err_msg=label)
        return
    with np.errstate(over="ignore", under="ignore"):
        rounded = flush(expected.astype(np.float32))
    np.testing.assert_allclose(actual, rounded, rtol=tolerance, atol=absolute, equal_nan=True, err_msg=label)


def assert_rows_alone(compiled: Compiled, feeds: Mapping[str, Array], rows: Iterable[int]) -> None:
    """Each row, computed alone, has the same bits as in the batch, but for the kind of a NaN.

    A denormal that is only passed on counts as zero.
    """
    values = compiled.graph.values
    whole = compiled(feeds)
    for row in rows:
        single = {name: _row(values[name], array, row) for name, array in feeds.items()}
        for name, array in compiled(single).items():
            expected = _row(values[name], whole[name], row)
            assert _bits(array) == _bits(expected), f"row {row} of {values[name]} alone differs from the batch"


def _bits(array: Array) -> bytes:
    flushed = flush(array)
    return (np.where(np.isnan(flushed), np.nan, flushed) if flushed.dtype.kind == "f" else flushed).tobytes()


def _row(value: Value, array: Array, row: int) -> Array:
    if not is_per_candidate(value.shape):
        return array
    scale = concrete(value.shape, {"N": 1})[0]
    return array[row * scale : (row + 1) * scale]


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[Any]]],
    outputs: Sequence[str],
    *,
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    domains: Sequence[str] = (),
    ranks: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Build a model; types and shapes of outputs are inferred by ONNX, but for the ``ranks`` that it cannot find."""
    ins = [helper.make_tensor_value_info(name, _ONNX_TYPES[dtype], shape) for name, (dtype, shape) in inputs.items()]
    outs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(list(nodes), "g", ins, outs, initializers)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    del model.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {entry.name: entry for entry in (*inferred.graph.value_info, *ins)}
    for name in outputs:
        entry = known.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"])
        if name in (ranks or {}):
            dims = [f"{name}{axis}" for axis in range((ranks or {})[name])]
            entry = helper.make_tensor_value_info(name, entry.type.tensor_type.elem_type, dims)
        model.graph.output.append(entry)
    return model


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@functools.cache
def _family_modules() -> list[Any]:
    """The files ``op_cases_*.py`` beside this one: cases of operators, one family a file."""
    return [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("op_cases_*.py"))]


def more(name: str) -> dict[str, Any]:
    """Join the dicts called ``name`` of all families."""
    joined: dict[str, Any] = {}
    for module in _family_modules():
        joined |= getattr(module, name, {})
    return joined


class Tools:
    """What the tests take from here."""

    GraphBuilder = GraphBuilder
    Compiled = Compiled
    TINY = TINY
    SPECIAL = SPECIAL
    flush = staticmethod(flush)
    expect = staticmethod(expect)
    assert_close = staticmethod(assert_close)
    assert_rows_alone = staticmethod(assert_rows_alone)
    onnx_model = staticmethod(onnx_model)
    run_onnxruntime = staticmethod(run_onnxruntime)
    more = staticmethod(more)


@pytest.fixture(scope="session")
def tools() -> type[Tools]:
    """The tools of this file."""
    return Tools


@pytest.fixture
def build() -> Callable[[], GraphBuilder]:
    """A fresh graph builder a call."""
    return GraphBuilder
