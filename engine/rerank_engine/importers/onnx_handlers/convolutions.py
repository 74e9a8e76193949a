"""Convolutions and pooling: windows, then a matrix product or a reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rerank_engine.dimensions import product
from rerank_engine.graph import DTYPES, Dim
from rerank_engine.importers.onnx import OnnxBuilder
from rerank_engine.importers.onnx_handlers.registry import handles

if TYPE_CHECKING:
    import onnx

_COMMON: dict[str, Any] = {
    "auto_pad": b"NOTSET",
    "dilations": None,
    "kernel_shape": None,
    "pads": None,
    "strides": None,
}


@dataclass(frozen=True)
class Geometry:
    """Where the windows of an operator lie, for each spatial dimension.

    Attributes
    ----------
    kernel, strides, dilations
        One number a dimension.
    pads
        All paddings before, then all after.
    ceiling
        Further padding at the end, for windows that reach over it (``ceil_mode``).
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    ceiling: tuple[int, ...]

    def attributes(self, fill: float = 0.0) -> dict[str, Any]:
        """Attributes of the ``Windows`` node."""
        rank = len(self.kernel)
        after = (pad + more for pad, more in zip(self.pads[rank:], self.ceiling, strict=True))
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": (*self.pads[:rank], *after),
            "fill": fill,
        }


def geometry(builder: OnnxBuilder, found: dict[str, Any], sizes: tuple[int | Dim, ...], kernel: Any) -> Geometry:
    """Work out strides, dilations and paddings from the attributes of a node."""
    rank = len(sizes)
    kernel = tuple(kernel)
    if len(kernel) != rank or not all(isinstance(size, int) for size in kernel):
        raise builder.refuse(f"kernel {kernel} does not fit {rank} spatial dimensions of known size")
    strides = tuple(found["strides"] or (1,) * rank)
    dilations = tuple(found["dilations"] or (1,) * rank)
    mode = found["auto_pad"].decode()
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise builder.refuse(f"auto_pad={mode!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    pads = tuple(found["pads"] or (0,) * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(pads) < 0:
        raise builder.refuse(f"strides {strides}, dilations {dilations} and pads {pads} do not fit {rank} dimensions")
    if mode.startswith("SAME"):
        before, after = [], []
        for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
            if not isinstance(size, int) and stride != 1:
                raise builder.refuse(f"auto_pad={mode} with stride {stride} over dimension {size} of unknown size")
            reach = dilation * (width - 1) + 1
            # With stride 1 the padding is the reach less one, whatever the size.
            total = (-(-size // stride) - 1) * stride + reach - size if isinstance(size, int) else reach - 1
            small, large = max(0, total) // 2, max(0, total) - max(0, total) // 2
            before.append(small if mode == "SAME_UPPER" else large)
            after.append(large if mode == "SAME_UPPER" else small)
        pads = (*before, *after)
    ceiling = [0] * rank
    if found.get("ceil_mode"):
        for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
            if not isinstance(size, int):
                raise builder.refuse(f"ceil_mode over dimension {size} of unknown size")
            span = size + pads[axis] + pads[rank + axis] - dilations[axis] * (width - 1) - 1
            more = -span % strides[axis]
            # A window that would start in the padding behind the data does not count.
            starts_in_padding = span + more >= size + pads[axis]
            ceiling[axis] = 0 if starts_in_padding else more
    return Geometry(kernel, strides, dilations, pads, tuple(ceiling))


def convolve(
    builder: OnnxBuilder, source: str, weight: str, bias: str | None, where: Geometry, groups: int, output: str | None
) -> str:
    """Emit a convolution of graph values; the weight has shape (M, C / groups, kernel...)."""
    shape, weights = builder.graph.values[source].shape, builder.graph.values[weight].shape
    channels, features = shape[1], weights[0]
    if not isinstance(channels, int) or not isinstance(features, int):
        raise builder.refuse("the numbers of channels must be known when the model is converted")
    if groups < 1 or channels % groups or features % groups or weights[1] != channels // groups:
        raise builder.refuse(
            f"{channels} channels in {groups} group(s) do not fit the weight {builder.graph.values[weight]}"
        )
    depth = channels // groups * math.prod(where.kernel)
    windows = builder.emit("Windows", [source], where.attributes())
    batch, *positions = builder.graph.values[windows].shape[:-2]
    place = product(positions)
    if groups == 1:
        flat = builder.emit_shaped("Reshape", windows, (batch, place, depth))
        matrix = builder.emit_shaped("Reshape", weight, (features, depth))
        made = builder.emit("MatMul", [flat, builder.emit("Transpose", [matrix], {"perm": (1, 0)})])
        if bias is not None:
            made = builder.emit("Add", [made, bias])
        turned = builder.emit("Transpose", [made], {"perm": (0, 2, 1)})
        return builder.emit_shaped("Reshape", turned, (batch, features, *positions), output)
    each = features // groups
    flat = builder.emit_shaped("Reshape", windows, (batch, place, groups, depth))
    flat = builder.emit("Transpose", [flat], {"perm": (0, 2, 1, 3)})
    matrix = builder.emit_shaped("Reshape", weight, (groups, each, depth))
    made = builder.emit("MatMul", [flat, builder.emit("Transpose", [matrix], {"perm": (0, 2, 1)})])
    if bias is not None:
        made = builder.emit("Add", [made, builder.emit_shaped("Reshape", bias, (groups, 1, each))])
    turned = builder.emit("Transpose", [made], {"perm": (0, 1, 3, 2)})
    return builder.emit_shaped("Reshape", turned, (batch, features, *positions), output)


@handles("Conv")
def _conv(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    found = builder.attributes({**_COMMON, "group": 1})
    source, weight = builder.value(node.input[0]), builder.value(node.input[1])
    if len(source.shape) < 3 or len(weight.shape) != len(source.shape):
        raise builder.refuse(f"needs (batch, channels, spatial...), has {source} and {weight}")
    kernel = found["kernel_shape"] or weight.shape[2:]
    if tuple(kernel) != weight.shape[2:]:
        raise builder.refuse(f"kernel_shape={kernel} does not fit {weight}")
    where = geometry(builder, found, source.shape[2:], kernel)
    bias = builder.value_name(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    convolve(builder, source.name, weight.name, bias, where, found["group"], node.output[0])


@handles("MaxPool", "AveragePool")
def _pool(builder: OnnxBuilder, node: onnx.NodeProto) -> None:
    largest = node.op_type == "MaxPool"
    understood = {**_COMMON, "ceil_mode": 0}
    if largest:
        found = builder.attributes(understood, only={"storage_order": 0})
        if len(node.output) > 1 and node.output[1]:
            raise builder.refuse("the output of indices is not supported")
    else:
        found = builder.attributes({**understood, "count_include_pad": 0})
    source = builder.value(node.input[0])
    sizes = source.shape[2:]
    where = geometry(builder, found, sizes, found["kernel_shape"] or ())
    dtype = DTYPES[source.dtype]
    lowest = -math.inf if dtype.kind == "f" else float(np.iinfo(dtype).min) if dtype.kind in "iu" else 0.0
    windows = builder.emit("Windows", [source.name], where.attributes(lowest if largest else 0.0))
    rank = len(builder.graph.values[windows].shape)
    made = builder.emit("ReduceMax" if largest else "ReduceSum", [windows], {"axes": (rank - 1,), "keepdims": 0})
    if not largest:
        counts = _counts(builder, where, sizes, bool(found["count_include_pad"]), source.dtype)
        made = builder.emit("Div", [made, counts])
    builder.emit("Transpose", [made], {"perm": (0, rank - 2, *range(1, rank - 2))}, node.output[0])


def _counts(builder: OnnxBuilder, where: Geometry, sizes: tuple[int | Dim, ...], with_padding: bool, dtype: str) -> str:
    """How many elements of each window count: (positions..., 1)."""
    rank = len(sizes)
    if not any(where.ceiling) and (with_padding or not any(where.pads)):
        return builder.own_constant("window", np.full((1,) * (rank + 1), math.prod(where.kernel), DTYPES[dtype]))
    fixed = [size for size in sizes if isinstance(size, int)]
    if len(fixed) != rank:
        raise builder.refuse(
            "an average that leaves padding out, over a dimension whose size is known only at run time"
        )
    ones = np.ones(fixed)
    if with_padding:
        ones = np.pad(ones, list(zip(where.pads[:rank], where.pads[rank:], strict=True)), constant_values=1)
    total = np.ones(())
    pads = where.attributes()["pads"]
    for axis in range(rank):
        own = np.ones(ones.shape[axis])
        before, after = (0, where.ceiling[axis]) if with_padding else (pads[axis], pads[rank + axis])
        line = np.pad(own, (before, after))
        reach = where.dilations[axis] * (where.kernel[axis] - 1) + 1
        starts = range(0, len(line) - reach + 1, where.strides[axis])
        counts = np.array([line[at : at + reach : where.dilations[axis]].sum() for at in starts])
        total = np.multiply.outer(total, counts)
    return builder.own_constant(f"{builder.graph.name}/window", total[..., None].astype(DTYPES[dtype]))
