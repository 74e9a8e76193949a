"""Blobs of trained weights: found by layer name, checked against the declared sizes, then made arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ConversionError
from rerank_engine.importers.caffe.files import NetworkFile

MOST_AXES = 32
"""Dimensions that a blob may have; Caffe's own limit."""

MOST_ELEMENTS = (1 << 31) - 1
"""Elements that a blob may have, a candidate; Caffe's own limit."""


class Weights:
    """Blobs of every layer.

    As in Caffe, a layer takes the blobs of the layer of the same name in the ``.caffemodel``; one that has none there
    takes those written in its own description, or those that it shares by the names in its ``param`` fields.

    Parameters
    ----------
    layers
        ``LayerParameter`` messages of the network.
    label
        Name of the network's file.
    trained
        The ``.caffemodel``; None when the network holds its own blobs.
    """

    def __init__(self, layers: Sequence[Any], label: str, trained: NetworkFile | None) -> None:
        self.label = trained.label if trained else label
        self._has_file = trained is not None
        self._blobs: dict[str, list[Any]] = {}
        self._asked: set[str] = set()
        for layer in trained.layers if trained else ():
            if layer.blobs and layer.name in self._blobs:
                raise ConversionError(f"{self.label}: two layers with weights are called {layer.name!r}")
            if layer.blobs:
                self._blobs[layer.name] = list(layer.blobs)
        for layer in layers:
            if layer.blobs:
                self._blobs.setdefault(layer.name, list(layer.blobs))
        self._share(layers)

    def _share(self, layers: Sequence[Any]) -> None:
        """Give layers without blobs those that they share, and see that shared ones are the same."""
        owners: dict[str, tuple[str, Any]] = {}
        named = [(layer, [spec.name for spec in layer.param]) for layer in layers]
        for layer, names in named:
            for name, blob in zip(names, self._blobs.get(layer.name, ()), strict=False):
                owner, known = owners.setdefault(name, (layer.name, blob)) if name else (layer.name, blob)
                if known is not blob and not _same(known, blob):
                    raise ConversionError(
                        f"{self.label}: layers {owner!r} and {layer.name!r} share the parameter {name!r},"
                        " but hold different values of it"
                    )
        for layer, names in named:
            if layer.name not in self._blobs and names and all(name in owners for name in names):
                self._blobs[layer.name] = [owners[name][1] for name in names]

    def count(self, layer: str) -> int:
        """Number of blobs of a layer.

        Raises
        ------
        ConversionError
            There are none, or another layer of this name has taken them.
        """
        if layer in self._asked:
            raise ConversionError(f"{self.label}: two layers with weights are called {layer!r}; give each its own name")
        self._asked.add(layer)
        blobs = self._blobs.get(layer)
        if blobs is None and not self._has_file:
            raise ConversionError(f"{self.label}: layer {layer!r} has weights; give the .caffemodel that holds them")
        if blobs is None:
            raise ConversionError(
                f"{self.label}: it holds no weights of layer {layer!r}; the prototxt and the caffemodel do not belong"
                " together, or the layer was renamed"
            )
        return len(blobs)

    def array(self, layer: str, index: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """One blob, in the wanted shape.

        Parameters
        ----------
        layer, index
            Whose blob, and the how many-th.
        shape
            What the layer's parameters and bottoms ask for.

        Returns
        -------
        ndarray
            Of that shape, float32.

        Raises
        ------
        ConversionError
            The blob has another shape (dimensions of 1 in front do not count, since old files always wrote four), or
            its declared shape and its number of values differ.
        """
        blob = self._blobs[layer][index]
        where = f"{self.label}: layer {layer!r}: blob {index}"
        declared = _declared_shape(blob)
        data, dtype = (blob.double_data, np.float64) if len(blob.double_data) else (blob.data, np.float32)
        if len(declared) > MOST_AXES:
            raise ConversionError(f"{where} declares {len(declared)} dimensions; Caffe allows {MOST_AXES}")
        if any(dim < 0 for dim in declared) or math.prod(declared) != len(data):
            raise ConversionError(f"{where} declares shape {declared}, but holds {len(data)} values")
        if _without_leading_ones(declared) != _without_leading_ones(shape):
            raise ConversionError(f"{where} has shape {declared}; the layer needs {shape}")
        with np.errstate(over="ignore"):
            return np.fromiter(data, dtype, len(data)).astype(np.float32, copy=False).reshape(shape)


def _declared_shape(blob: Any) -> tuple[int, ...]:
    if any(blob.HasField(field) for field in ("num", "channels", "height", "width")):
        return (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim)


def _without_leading_ones(shape: Sequence[int]) -> tuple[int, ...]:
    start = 0
    while start < len(shape) and shape[start] == 1:
        start += 1
    return tuple(shape[start:])


def _same(one: Any, other: Any) -> bool:
    return bool(one.data == other.data and one.double_data == other.double_data)
