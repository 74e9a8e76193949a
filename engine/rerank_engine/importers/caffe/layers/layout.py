"""Layers that move elements and compute nothing."""

from __future__ import annotations

from itertools import pairwise

from rerank_engine.importers.caffe.layers.registry import ANY, converts
from rerank_engine.importers.caffe.weights import MOST_AXES
from rerank_engine.importers.caffe.writer import BATCH, Dims, LayerWriter, dims_text


def _axis_of(layer: LayerWriter, old_name: str) -> int:
    """Read an axis that old files give under another name, where it cannot be negative."""
    if not layer.has(old_name):
        return layer.axis()
    if layer.has("axis"):
        raise layer.wrong(f"both axis and {old_name} are given; keep axis", old_name)
    return layer.axis(old_name)


@converts("Concat", "concat_param", "axis concat_dim", bottoms=(1, ANY))
def concat(layer: LayerWriter) -> None:
    """Joins blobs along an axis."""
    axis, first = _axis_of(layer, "concat_dim"), layer.bottoms[0]
    for index, blob in enumerate(layer.bottoms):
        if (
            blob.rank != first.rank
            or blob.dims[:axis] + blob.dims[axis + 1 :] != first.dims[:axis] + first.dims[axis + 1 :]
        ):
            raise layer.wrong(
                f"bottom {index} of shape {dims_text(blob.dims)} cannot be joined with {dims_text(first.dims)} along"
                f" axis {axis}"
            )
    dims = (*first.dims[:axis], sum(layer.count(blob.dims[axis : axis + 1]) for blob in layer.bottoms))
    layer.finish("Concat", [blob.name for blob in layer.bottoms], dims + first.dims[axis + 1 :], axis=axis)


@converts("Slice", "slice_param", "axis slice_dim slice_point", tops=(1, ANY), layout=True)
def slice_(layer: LayerWriter) -> None:
    """Cuts a blob along an axis at the points given, or into equal parts."""
    (x,) = layer.bottoms
    axis = _axis_of(layer, "slice_dim")
    size, parts = layer.count(x.dims[axis : axis + 1]), len(layer.tops)
    points = [int(point) for point in layer.parameter.slice_point]
    if points and len(points) != parts - 1:
        raise layer.wrong(f"{parts} tops need {parts - 1} points, got {len(points)}", "slice_point")
    if not points and size % parts:
        raise layer.wrong(f"{size} elements cannot be cut into {parts} equal parts", "slice_point")
    edges = [0, *points, size] if points else list(range(0, size + 1, size // parts))
    sizes = [stop - start for start, stop in pairwise(edges)]
    if min(sizes) < 1:
        raise layer.wrong(f"the points {points} must rise and lie inside of {size}", "slice_point")
    for index, part in enumerate(sizes):
        layer.declare(index, (*x.dims[:axis], part, *x.dims[axis + 1 :]), x.dtype)
    if parts == 1:
        layer.finish_all("Identity", [x.name])
    else:
        layer.finish_all("Split", [x.name, layer.integers("sizes", sizes)], axis=axis)


@converts("Split", tops=(1, ANY), layout=True)
def split(layer: LayerWriter) -> None:
    """Copies a blob for several readers."""
    (x,) = layer.bottoms
    layer.copy(x)


@converts("Flatten", "flatten_param", "axis end_axis", layout=True)
def flatten(layer: LayerWriter) -> None:
    """Makes one axis of those from ``axis`` to ``end_axis``."""
    (x,) = layer.bottoms
    axis, end = layer.axis("axis"), layer.axis("end_axis")
    if axis > end:
        raise layer.wrong(f"axis {axis} comes after end_axis {end}", "axis")
    joined = x.dims[axis] if axis == end else layer.count(x.dims[axis : end + 1])
    dims = (*x.dims[:axis], joined, *x.dims[end + 1 :])
    if axis == 1 and end == x.rank - 1:
        layer.finish("Flatten", [x.name], dims, x.dtype, axis=1)
    else:
        layer.finish("Reshape", [x.name, layer.shape_vector(dims)], dims, x.dtype)


@converts("Reshape", "reshape_param", "shape axis num_axes", layout=True)
def reshape(layer: LayerWriter) -> None:
    """Other dimensions for the same elements: 0 copies a dimension, -1 takes what is left."""
    (x,) = layer.bottoms
    start, length = int(layer.parameter.axis), int(layer.parameter.num_axes)
    start = start + x.rank + 1 if start < 0 else start
    end = x.rank if length == -1 else start + length
    if not 0 <= start <= x.rank or length < -1 or end > x.rank:
        raise layer.wrong(f"axis and num_axes do not fit the bottom of shape {dims_text(x.dims)}", "num_axes")
    dims = (*x.dims[:start], *_reshaped(layer, x.dims, start, end), *x.dims[end:])
    layer.finish("Reshape", [x.name, layer.shape_vector(dims)], dims, x.dtype)


def _reshaped(layer: LayerWriter, bottom: Dims, start: int, end: int) -> list[int | str]:
    """Dimensions that take the place of ``bottom[start:end]``."""
    asked = [int(dim) for dim in layer.parameter.shape.dim]
    if len(asked) > MOST_AXES:
        raise layer.wrong(f"{len(asked)} dimensions; Caffe allows {MOST_AXES}", "shape")
    if any(dim < -1 for dim in asked) or asked.count(-1) > 1:
        raise layer.wrong(f"{asked[:8]} holds more than one -1, or a number below it", "shape")
    if any(dim == 0 and start + index >= len(bottom) for index, dim in enumerate(asked)):
        raise layer.wrong(f"0 copies an axis that the bottom of shape {dims_text(bottom)} has not", "shape")
    dims: list[int | str] = [bottom[start + index] if dim == 0 else dim for index, dim in enumerate(asked)]
    within = bottom[start:end]
    if within[:1] == (BATCH,) and BATCH not in dims:
        # The batch is given as a number. It is the batch only if the rest are the elements of one candidate.
        known = [dim for dim in dims[1:] if dim != -1]
        row = layer.count(within[1:])
        if not dims or -1 in dims[1:] or dims[0] not in (-1, layer.batch) or layer.count(known) != row:
            raise layer.refuse(
                f"{asked} says nothing of the batch of {dims_text(bottom)}, or mixes it with other axes; start with 0,"
                " which keeps it",
                "shape",
            )
        dims[0] = BATCH
    known = [dim for dim in dims if dim not in (-1, BATCH)]
    total, rest = layer.count([dim for dim in within if dim != BATCH]), layer.count(known)
    if (BATCH in dims) != (BATCH in within):
        raise layer.refuse(f"{asked} moves the batch of {dims_text(bottom)}; it must stay first", "shape")
    if rest == 0 or total % rest or (-1 not in dims and total != rest):
        raise layer.wrong(f"{asked} cannot hold the elements of {dims_text(bottom)}", "shape")
    return [total // rest if dim == -1 else dim for dim in dims]


@converts("Tile", "tile_param", "axis tiles")
def tile(layer: LayerWriter) -> None:
    """Repeats a blob along an axis."""
    (x,) = layer.bottoms
    axis, copies = layer.axis(), layer.positive("tiles")
    size = layer.count(x.dims[axis : axis + 1])
    repeats = [copies if index == axis else 1 for index in range(x.rank)]
    dims = (*x.dims[:axis], size * copies, *x.dims[axis + 1 :])
    layer.finish("Tile", [x.name, layer.integers("repeats", repeats)], dims)
