"""PyTorch modules: the module's own numbers through ONNX Runtime and the engine, and exports that must not pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank_engine import convert, load
from rerank_engine.errors import ConversionError
from rerank_engine.importers.agreement import Sample, check_agreement
from rerank_engine.importers.torch_factory import load_factory
from rerank_engine.importers.torch_source import torch_to_onnx

Array = NDArray[Any]
ITEMS, HISTORY, WIDTH = 30, 6, 8


def seeded(module: nn.Module) -> nn.Module:
    """Give every parameter a value of its own."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5, generator=random)
    return module


class WideDeep(nn.Module):
    """Linear part and MLP over ids and numbers; the hidden layer is normalised with running figures."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(ITEMS, 1)
        self.item = nn.Embedding(ITEMS, WIDTH)
        self.deep = nn.Sequential(
            nn.Linear(WIDTH + 3, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 1)
        )

    def forward(self, item: Tensor, dense: Tensor) -> Tensor:
        value = torch.cat([self.item(item), dense], dim=-1)
        return torch.sigmoid(self.deep(value) + self.wide(item)).squeeze(-1)

    def example_inputs(self, candidates: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(candidates)
        return torch.randint(0, ITEMS, (candidates,), generator=random), torch.randn(candidates, 3, generator=random)


class Attention(nn.Module):
    """Each candidate attends to a shared history, whose padding has the id 0."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, WIDTH)
        self.score = nn.Sequential(nn.Linear(4 * WIDTH, 10), nn.PReLU(), nn.Linear(10, 1))
        self.out = nn.Linear(2 * WIDTH, 1)

    def forward(self, item: Tensor, history: Tensor) -> dict[str, Tensor]:
        target = self.item(item)
        steps = self.item(history).unsqueeze(0).expand(target.shape[0], -1, -1)
        wide = target.unsqueeze(1).expand(-1, steps.shape[1], -1)
        logits = self.score(torch.cat([steps, wide, steps - wide, steps * wide], dim=-1)).squeeze(-1)
        weights = torch.softmax(logits.masked_fill(history == 0, -1e9), dim=-1)
        interest = (weights.unsqueeze(-1) * steps).sum(1)
        return {"click": self.out(torch.cat([interest, target], dim=-1)).squeeze(-1)}

    def example_inputs(self, candidates: int) -> dict[str, Tensor]:
        return {
            "item": torch.arange(candidates) * 7 % ITEMS,
            "history": torch.tensor([3, 9, 27, 5, 0, 0]),
        }


class Sequence(nn.Module):
    """A GRU reads the shared history; its state meets each candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, WIDTH)
        self.recurrent = nn.GRU(WIDTH, 10, num_layers=2, batch_first=True, bidirectional=True)
        self.project = nn.Linear(20, WIDTH)

    def forward(self, item: Tensor, history: Tensor) -> Tensor:
        steps, _ = self.recurrent(self.item(history).unsqueeze(0))
        return (self.item(item) * torch.tanh(self.project(steps[:, -1]))).sum(-1)

    example_inputs = Attention.example_inputs


class Bags(nn.Module):
    """Three bags of ids of each candidate; id 0 is padding, and a bag may hold nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(ITEMS, 4, mode=mode, padding_idx=0) for mode in ("sum", "mean", "max")
        )
        self.out = nn.Linear(12, 1)

    def forward(self, tags: Tensor) -> Tensor:
        return self.out(torch.cat([bag(tags) for bag in self.bags], dim=-1)).squeeze(-1)

    def example_inputs(self, candidates: int) -> Tensor:
        tags = torch.arange(candidates * 5).reshape(candidates, 5) * 11 % ITEMS
        tags[::3] = 0
        return tags


def named(module: nn.Module, candidates: int) -> dict[str, Array]:
    made = module.example_inputs(candidates)  # type: ignore[operator]
    names = {WideDeep: ["item", "dense"], Bags: ["tags"]}.get(type(module), [])
    entries = (
        made
        if isinstance(made, Mapping)
        else dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))
    )
    return {name: tensor.numpy() for name, tensor in entries.items()}


def answer(module: nn.Module, candidates: int) -> Array:
    made = module.example_inputs(candidates)  # type: ignore[operator]
    with torch.no_grad():
        if isinstance(made, Mapping):
            found = module(**made)
        else:
            found = module(*made) if isinstance(made, tuple) else module(made)
    array: Array = (found["click"] if isinstance(found, Mapping) else found).numpy()
    return array


KINDS: dict[str, Callable[[], nn.Module]] = {
    "wide_deep": WideDeep,
    "attention": Attention,
    "sequence": Sequence,
    "bags": Bags,
}


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[nn.Module, onnx.ModelProto]]:
    """Each module and its export, made once."""
    modules = {name: seeded(kind()).eval() for name, kind in KINDS.items()}
    return {name: (module, torch_to_onnx(module)) for name, module in modules.items()}


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, made: Any) -> tuple[nn.Module, onnx.ModelProto]:
    found: tuple[nn.Module, onnx.ModelProto] = made[request.param]
    return found


# --- right ------------------------------------------------------------------------------------------------------


def test_the_export_computes_what_the_module_computes(pair: Any, tools: Any) -> None:
    module, model = pair
    for count in (1, 7, 200):
        (found,) = tools.run_onnxruntime(model, named(module, count)).values()
        np.testing.assert_allclose(found, answer(module, count), rtol=2e-6, atol=2e-6)


def test_the_engine_computes_what_the_module_computes(pair: Any, tmp_path: Path) -> None:
    module, model = pair
    convert(model).save(tmp_path / "model.rrm")
    engine = load(tmp_path / "model.rrm", cache_dir=tmp_path)
    for count in (0, 1, 7, 200):
        found = engine.run(named(module, count))
        np.testing.assert_allclose(found, answer(module, count), rtol=2e-6, atol=2e-6)


def test_names_and_dimensions(made: Any) -> None:
    _, model = made["attention"]
    shapes = {
        entry.name: [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        for entry in model.graph.input
    }
    assert shapes == {"item": ["N"], "history": [HISTORY]}
    assert [output.name for output in model.graph.output] == ["click"]
    assert [output.name for output in made["bags"][1].graph.output] == ["score"]


def test_a_bag_is_a_lookup_and_a_reduction(made: Any) -> None:
    module, model = made["bags"]
    assert not {"Loop", "If", "SequenceEmpty"} & {node.op_type for node in model.graph.node}
    assert all("forward" not in vars(bag) for bag in module.bags)


def test_no_paths_of_the_exporting_machine_stay(made: Any) -> None:
    for _, model in made.values():
        text = model.SerializeToString()
        assert b"site-packages" not in text
        assert b".py" not in text


# --- forms ------------------------------------------------------------------------------------------------------


def linear() -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(4, 1), nn.Dropout(), nn.Flatten(0)))


def run(model: onnx.ModelProto, array: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    ((name, _),) = [(entry.name, entry.shape) for entry in session.get_inputs()]
    (found,) = session.run(None, {name: array})
    return found


def test_a_module_is_exported_quietly_in_evaluation_mode_and_left_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = linear().train()
    module[1].eval()
    example = np.ones((1, 4), np.float32)
    model = torch_to_onnx(module, example, input_names=["features"], output_names=["logit"], candidates="items")
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == ["items", 4]
    assert [model.graph.input[0].name, model.graph.output[0].name] == ["features", "logit"]
    assert tuple(capfd.readouterr()) == ("", "")
    assert not list(recwarn)
    assert not list(tmp_path.iterdir())


def test_scripted_modules_and_exported_programs() -> None:
    module = linear().eval()
    example = torch.arange(12.0).reshape(3, 4)
    expected = module(example).detach().numpy()
    size = torch.export.Dim("batch", min=2)
    for source, examples in (
        (torch.jit.script(module), example),
        (torch.jit.trace(module, (example,)), (example,)),
        (torch.export.export(module, (example,), dynamic_shapes=({0: size},)), None),
    ):
        model = torch_to_onnx(source, examples)
        assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["N", 4]
        np.testing.assert_allclose(run(model, example.numpy()), expected, rtol=2e-6)


# --- wrong ------------------------------------------------------------------------------------------------------


class Function(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "reshape to the traced length": (lambda x: x.reshape(5, 4).sum(1), "only works for 5 candidates"),
    "a branch on the length": (
        lambda x: (x if x.shape[0] > 3 else -x).sum(1),
        "differs from the module for 1 candidate",
    ),
    "a branch on a value": (lambda x: (x if x.sum() > 0 else -x).sum(1), "cannot export the module.*data-dependent"),
    "a random module": (lambda x: nn.functional.dropout(x, training=True).sum(1), "source is random"),
    "one candidate fails": (lambda x: (x[0] + x[1]).expand(x.shape[0], 4).sum(1), "fails for 1 candidate:"),
    "not a tensor": (lambda x: 3, "must return a tensor"),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("case", WRONG)
def test_a_module_that_cannot_vary_is_refused(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, reason = WRONG[case]
    with pytest.raises(ConversionError, match=reason):
        torch_to_onnx(Function(function), torch.randn(5, 4, generator=torch.Generator().manual_seed(3)))
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_traced_module_is_taken_at_its_word() -> None:
    """Tracing bakes the length into the module itself, which is then what the export must agree with."""

    def repeat(x: Tensor) -> Tensor:
        return x.sum(1) + torch.arange(len(x)).sum()

    example = torch.ones(5, 4)
    model = torch_to_onnx(torch.jit.trace(Function(repeat), (example,), check_trace=False), example)
    assert run(model, np.ones((2, 4), np.float32))[0] == 4 + 10


def test_inputs_are_checked() -> None:
    module = Attention()
    with pytest.raises(ConversionError, match=r"item \[7\], history \[6\].*shared="):
        torch_to_onnx(module, {"item": torch.arange(7), "history": torch.arange(6)})
    with pytest.raises(ConversionError, match="no input is called 'user'; inputs: item, history"):
        torch_to_onnx(module, (torch.arange(6), torch.arange(6)), shared=["user"])
    with pytest.raises(ConversionError, match="forward takes no 'user'; it takes item, history"):
        torch_to_onnx(module, {"user": torch.arange(7)})
    with pytest.raises(ConversionError, match="no input counts candidates"):
        torch_to_onnx(module, (torch.arange(6), torch.arange(6)), shared=["item", "history"])
    with pytest.raises(ConversionError, match="1 inputs cannot be called"):
        torch_to_onnx(linear(), torch.ones(2, 4), input_names=["a", "b"])
    with pytest.raises(ConversionError, match="one dimension may count candidates"):
        torch_to_onnx(linear(), lambda count: torch.ones(2 * count, 4))
    with pytest.raises(ConversionError, match="is a float; expected a tensor"):
        torch_to_onnx(linear(), 3.0)
    with pytest.raises(ConversionError, match="has no example_inputs"):
        torch_to_onnx(linear())
    with pytest.raises(ConversionError, match=r"expected a torch module.*got int"):
        torch_to_onnx(3, torch.ones(2, 4))
    with pytest.raises(ConversionError, match="cannot be called 'list length'"):
        torch_to_onnx(linear(), torch.ones(2, 4), candidates="list length")
    with pytest.raises(ConversionError, match="0 varying dimensions"):
        torch_to_onnx(torch.export.export(linear().eval(), (torch.ones(2, 4),)))


def test_a_recurrent_layer_with_the_other_equations_is_found(made: Any) -> None:
    """An exporter that leaves out linear_before_reset writes a valid model that computes something else."""
    module, model = made["sequence"]
    broken = onnx.ModelProto.FromString(model.SerializeToString())
    layers = [node for node in broken.graph.node if node.op_type == "GRU"]
    assert layers
    for node in layers:
        kept = [entry for entry in node.attribute if entry.name != "linear_before_reset"]
        assert len(kept) < len(node.attribute)
        del node.attribute[:]
        node.attribute.extend(kept)
    samples = [Sample(count, named(module, count), {"score": answer(module, count)}) for count in (2, 7)]
    check_agreement(model, samples, "the module")
    with pytest.raises(ConversionError, match="differs from the module for 2 candidates: output 'score' is off by"):
        check_agreement(broken, samples, "the module")


def test_agreement_is_checked_without_onnxruntime_too(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, model = made["wide_deep"]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    good = Sample(3, named(module, 3), {"score": answer(module, 3)})
    check_agreement(model, [good], "the module")
    with pytest.raises(ConversionError, match="is off by"):
        check_agreement(model, [Sample(3, good.feeds, {"score": good.expected["score"] + 0.01})], "the module")


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        ([1.0, 2.0], [[1.0, 2.0]], "shape"),
        ([1.0, np.nan], [1.0, 2.0], "is off by nan"),
        ([1.0, np.inf], [1.0, 2.0], "is off by inf"),
        ([1.0, 2.0], [1.0, np.nan], "NaN or infinity"),
        ([1.0, np.inf], [1.0, -np.inf], "NaN or infinity"),
        ([1.0, 2.001], [1.0, 2.0], "is off by 0.001 where the largest magnitude is 2"),
    ],
)
def test_what_counts_as_a_difference(found: Any, expected: Any, reason: str, tools: Any) -> None:
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    model = tools.onnx_model([node], {"x": ("float32", ["N"])}, ["y"])
    feeds, wanted = ({name: np.asarray(array, np.float32)} for name, array in (("x", found), ("y", expected)))
    with pytest.raises(ConversionError, match=reason):
        check_agreement(model, [Sample(2, feeds, wanted)], "the source")
    check_agreement(model, [Sample(2, feeds, {"y": feeds["x"]})], "the source")


# --- files ------------------------------------------------------------------------------------------------------

FACTORY = """
from dataclasses import dataclass

import torch
from layers import width

@dataclass
class Config:
    width: int = width

def pair():
    return torch.nn.Linear(Config().width, 1), torch.ones(2, 4)

def bare():
    return torch.nn.Linear(4, 1)

def brings():
    module = bare()
    module.example_inputs = lambda: (torch.ones(3, 4),)
    return module

def fails():
    raise RuntimeError("no weights")

def number():
    return 3

constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(FACTORY)
    (tmp_path / "layers.py").write_text("width = 4\n")
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    return tmp_path


def test_a_factory_of_a_file_makes_the_module_and_its_inputs(folder: Path) -> None:
    before = list(sys.path)
    for name, rows in (("pair", 2), ("brings", 3)):
        module, examples = load_factory(f"{folder / 'model.py'}:{name}")
        assert isinstance(module, nn.Linear)
        assert (examples if isinstance(examples, Tensor) else examples[0]).shape == (rows, 4)
    assert sys.path == before
    assert sorted(path.name for path in folder.iterdir()) == ["broken.py", "layers.py", "model.py"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("model.py", "expected path/model.py:factory"),
        ("model.py:not a name", "expected path/model.py:factory"),
        ("missing.py:pair", "no such file"),
        ("model.py:missing", "no function 'missing'; functions: bare, brings, .*pair"),
        ("model.py:constant", "no function 'constant'"),
        ("model.py:fails", "RuntimeError: no weights"),
        ("model.py:number", "returns int; expected a module"),
        ("model.py:bare", "has no example_inputs"),
        ("broken.py:pair", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_factory_that_does_not_fit_is_refused(folder: Path, address: str, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        load_factory(str(folder / address))
