"""Export PyTorch's EmbeddingBag with both of its exporters, with the outputs that PyTorch itself computes.

    python make_embedding_bags.py tests/engine/data

Needs ``torch`` and ``onnxscript``. Writes ``embedding_bags.npz``: ``NAME/model`` holds the bytes of a model,
``NAME/CASE/INPUT`` its inputs and ``NAME/CASE/=`` its output.
"""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

ROWS, WIDTH, SIZE = 10, 3, 5


class Bags(torch.nn.Module):
    """Bags given by offsets."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags = torch.nn.EmbeddingBag(ROWS, WIDTH, **options)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return self.bags(ids, offsets, weights)


class FixedBags(torch.nn.Module):
    """Bags of one size, a row of ids each."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags = torch.nn.EmbeddingBag(ROWS, WIDTH, **options)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return self.bags(ids, per_sample_weights=weights)


def draw(name: str, count: int, *, fixed: bool, weighted: bool, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Inputs for ``count`` bags, some of them empty where the exporter can say so."""
    shape = (count, SIZE) if fixed else (3 * count + 2,)
    feeds: dict[str, NDArray[Any]] = {"ids": random.integers(0, ROWS, shape)}
    if not fixed:
        offsets = np.sort(random.integers(0, shape[0], count))
        if "old" in name and "max" in name:
            offsets = np.arange(count) * 3
        offsets[:1] = 0
        if "last" in name:
            offsets = np.append(offsets, shape[0])
        feeds["offsets"] = offsets.astype(np.int64)
    if weighted:
        feeds["weights"] = random.normal(size=shape).astype(np.float32)
    return feeds


def export(module: torch.nn.Module, feeds: dict[str, NDArray[Any]], *, old: bool) -> bytes:
    """Bytes of the exported model, without what it tells of the machine."""
    arguments = tuple(torch.from_numpy(array) for array in feeds.values())
    lengths = {"offsets": "N", "ids": "N" if "offsets" not in feeds else "L"}
    axes = {name: lengths.get(name, lengths["ids"]) for name in feeds}
    if old:
        buffer = io.BytesIO()
        named = {name: {0: axis} for name, axis in axes.items()}
        torch.onnx.export(
            module, arguments, buffer, opset_version=17, dynamo=False, input_names=list(feeds), dynamic_axes=named
        )
        model = onnx.load_from_string(buffer.getvalue())
    else:
        dims = {name: torch.export.Dim(name, min=1) for name in set(axes.values())}
        shapes = tuple({0: dims[axis]} for axis in axes.values())
        program = torch.onnx.export(
            module,
            arguments,
            opset_version=18,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(feeds),
            verbose=False,
        )
        model = program.model_proto
    strip(model.graph)
    for function in model.functions:
        strip(function)
    del model.metadata_props[:]
    return model.SerializeToString()


def strip(graph: Any) -> None:
    """Take away source lines and the like."""
    del graph.metadata_props[:]
    for entry in getattr(graph, "value_info", ()):
        del entry.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                strip(attribute.g)


def main(folder: Path) -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    variants: dict[str, tuple[type[torch.nn.Module], dict[str, Any], bool]] = {}
    for mode in ("sum", "mean", "max"):
        variants[f"new {mode}"] = (Bags, {"mode": mode}, False)
        variants[f"new {mode}, padding"] = (Bags, {"mode": mode, "padding_idx": 2}, False)
        variants[f"new {mode}, last offset"] = (Bags, {"mode": mode, "include_last_offset": True}, False)
        variants[f"new fixed {mode}"] = (FixedBags, {"mode": mode}, False)
        variants[f"new fixed {mode}, padding"] = (FixedBags, {"mode": mode, "padding_idx": 0}, False)
        variants[f"old {mode}"] = (Bags, {"mode": mode}, False)
        variants[f"old fixed {mode}"] = (FixedBags, {"mode": mode}, False)
    variants["new sum, weights"] = (Bags, {"mode": "sum"}, True)
    variants["new fixed sum, weights"] = (FixedBags, {"mode": "sum"}, True)
    variants["old sum, weights"] = (Bags, {"mode": "sum"}, True)
    variants["old sum, last offset"] = (Bags, {"mode": "sum", "include_last_offset": True}, False)
    arrays: dict[str, NDArray[Any]] = {}
    for number, (name, (kind, options, weighted)) in enumerate(variants.items()):
        random = np.random.default_rng(number)
        module = kind(**options).eval()
        fixed = kind is FixedBags
        example = draw(name, 3, fixed=fixed, weighted=weighted, random=random)
        arrays[f"{name}/model"] = np.frombuffer(export(module, example, old=name.startswith("old")), np.uint8)
        for count in (1, 2, 9):
            feeds = draw(name, count, fixed=fixed, weighted=weighted, random=random)
            with torch.no_grad():
                result = module(*(torch.from_numpy(array) for array in feeds.values())).numpy()
            arrays |= {f"{name}/{count}/{key}": array for key, array in feeds.items()} | {f"{name}/{count}/=": result}
    np.savez_compressed(folder / "embedding_bags.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
