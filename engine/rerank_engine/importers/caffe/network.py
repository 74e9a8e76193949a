"""Layers become a network in which every blob is written once: in-place layers renamed, inputs and outputs found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.caffe.weights import MOST_AXES, MOST_ELEMENTS

DATA_LAYERS = frozenset(
    ("Data", "DummyData", "HDF5Data", "ImageData", "MemoryData", "Python", "WindowData", "AnnotatedData")
)
"""Layers that read a data set: they have no place in inference."""

JUDGES: Mapping[str, int] = {
    "Accuracy": 1,
    "ContrastiveLoss": 2,
    "EuclideanLoss": 1,
    "HingeLoss": 1,
    "InfogainLoss": 1,
    "MultinomialLogisticLoss": 1,
    "SigmoidCrossEntropyLoss": 1,
    "SoftmaxWithLoss": 1,
}
"""Layers that compare with a label, and how many of their bottoms, the first ones, the network predicts."""

SINKS = frozenset(("HDF5Output", "Silence"))
"""Layers that use up blobs and make none."""


@dataclass(frozen=True)
class InputBlob:
    """An input.

    Attributes
    ----------
    name
        The blob's name.
    dims
        As declared; the first is the batch.
    holds_ids
        Only ``Embed`` layers read it, so it holds integers.
    """

    name: str
    dims: tuple[int, ...]
    holds_ids: bool


@dataclass(frozen=True)
class WiredLayer:
    """A layer whose bottoms and tops are names that are written once.

    Attributes
    ----------
    message
        The ``LayerParameter``.
    name
        The layer's name, or a unique one made from it.
    bottoms, tops
        Names of blobs.
    """

    message: Any
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]


class Names:
    """Names in use, and unique ones made from others.

    >>> names = Names(["x", "x.1"])
    >>> names.make("y"), names.make("x"), names.make("x")
    ('y', 'x.2', 'x.3')
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def make(self, name: str) -> str:
        """Return ``name``, or that with a number, such that nobody else has it."""
        found, count = name, self._counts.get(name, 1)
        while found in self._taken:
            found, count = f"{name}.{count}", count + 1
        self._taken.add(found)
        # The next one starts where this one ended: a thousand layers of one name take a thousand steps.
        self._counts[name] = count
        return found


@dataclass(frozen=True)
class Network:
    """What is converted: ``layers`` in order, from ``inputs`` to ``outputs``; ``names`` are those of the blobs."""

    inputs: tuple[InputBlob, ...]
    layers: tuple[WiredLayer, ...]
    outputs: tuple[str, ...]
    names: Names


class _Wiring:
    """State while the layers are walked."""

    def __init__(self, layers: Sequence[Any], label: str, never_in_place: Collection[str]) -> None:
        self.label = label
        self.never_in_place = never_in_place
        self.current: dict[str, str] = {}
        self.judged: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.wired: list[WiredLayer] = []
        self.used: set[str] = set()
        self.writes = Counter(top for layer in layers for top in layer.top)
        self.blobs = Names(self.writes)
        self.layer_names = Names()

    def wrong(self, layer: Any, why: str) -> ConversionError:
        return ConversionError(f"{self.label}: layer {layer.name!r} ({layer.type or 'no type'}): {why}")

    def add(self, layer: Any) -> None:
        if not layer.type:
            raise self.wrong(layer, "it has no type")
        if layer.type in DATA_LAYERS:
            raise UnsupportedOperatorError(
                f"{self.label}: layer {layer.name!r} ({layer.type}): layers that bring data are not converted; write a"
                " deploy.prototxt with an Input layer, which gives the shape, in its place"
            )
        bottoms = [self._bottom(layer, index, blob) for index, blob in enumerate(layer.bottom)]
        if layer.type in JUDGES:
            predicted = JUDGES[layer.type]
            if len(layer.top) > 1 and layer.type != "Accuracy":
                raise UnsupportedOperatorError(
                    f"{self.label}: layer {layer.name!r} ({layer.type}): its second top {layer.top[1]!r} is not"
                    " supported; compute it in a layer of its own, such as Softmax"
                )
            self.used.update(bottoms[predicted:])
            self.judged.update((top, layer.name) for top in layer.top)
            return
        self.used.update(bottoms)
        if layer.type in SINKS:
            return
        if not layer.top:
            raise self.wrong(layer, "it has no top")
        tops = [self._top(layer, index, blob) for index, blob in enumerate(layer.top)]
        if layer.type == "Input":
            self._add_input(layer, tops)
        else:
            self.wired.append(WiredLayer(layer, self._layer_name(layer, tops), tuple(bottoms), tuple(tops)))

    def _bottom(self, layer: Any, index: int, blob: str) -> str:
        if blob in self.current:
            return self.current[blob]
        if blob in self.judged:
            raise self.wrong(
                layer,
                f"bottom {index}, {blob!r}, comes from the loss or accuracy layer {self.judged[blob]!r},"
                " which inference leaves out",
            )
        raise self.wrong(layer, f"bottom {index}, {blob!r}, is made by no earlier layer (in phase TEST)")

    def _top(self, layer: Any, index: int, blob: str) -> str:
        if not blob:
            raise self.wrong(layer, f"top {index} has no name")
        self.writes[blob] -= 1
        name = blob
        if index < len(layer.bottom) and layer.bottom[index] == blob:
            if layer.type in self.never_in_place:
                raise self.wrong(layer, f"top {index}, {blob!r}, is also its bottom; this layer cannot work in place")
        elif blob in self.current or blob in self.judged:
            raise self.wrong(layer, f"top {index}, {blob!r}, is already made by another layer")
        # An input keeps its name for the caller; otherwise the last writer has the plain name, as in Caffe's blobs.
        if blob in self.shapes or (self.writes[blob] and layer.type != "Input"):
            name = self.blobs.make(f"{blob}@{layer.name}")
        self.current[blob] = name
        return name

    def _add_input(self, layer: Any, tops: Sequence[str]) -> None:
        shapes = [tuple(shape.dim) for shape in layer.input_param.shape]
        if layer.bottom:
            raise self.wrong(layer, "an Input layer has no bottom")
        if len(shapes) == 1:
            shapes *= len(tops)
        if not shapes or len(shapes) != len(tops):
            raise self.wrong(layer, f"field input_param.shape: {len(tops)} tops need as many shapes, got {len(shapes)}")
        for blob, dims in zip(tops, shapes, strict=True):
            if (
                not 1 <= len(dims) <= MOST_AXES
                or not 0 <= dims[0] <= MOST_ELEMENTS
                or any(dim < 1 for dim in dims[1:])
                or math.prod(dims[1:]) > MOST_ELEMENTS
            ):
                raise self.wrong(
                    layer,
                    f"field input_param.shape: {list(dims[:MOST_AXES])} of {blob!r} is no shape with a batch first",
                )
            self.shapes[blob] = dims

    def _layer_name(self, layer: Any, tops: Sequence[str]) -> str:
        return self.layer_names.make(layer.name or tops[0])


def wire(layers: Sequence[Any], label: str, never_in_place: Collection[str], layout: Collection[str]) -> Network:
    """Connect layers by their blobs.

    As in Caffe, the outputs are the blobs that no later layer reads. Loss and accuracy layers are left out, so what
    they judge counts as an output unless another layer reads it; what only they need is left out with them.

    Parameters
    ----------
    layers
        ``LayerParameter`` messages of phase TEST, in order.
    label
        Name of the file in messages.
    never_in_place
        Layer types whose top must not be their bottom.
    layout
        Layer types that move elements and compute nothing, so that ids stay ids.

    Raises
    ------
    ConversionError
        A bottom is unknown, a top is made twice, an input has no shape, batches differ, or there is no output.
    UnsupportedOperatorError
        A layer reads a data set.
    """
    wiring = _Wiring(layers, label, never_in_place)
    for layer in layers:
        wiring.add(layer)
    final = [top for layer in wiring.wired for top in layer.tops]
    outputs = [top for top in final if top not in wiring.used]
    if not outputs:
        raise ConversionError(f"{label}: no layer makes a result that is left over as an output")
    needed = set(outputs)
    kept = []
    for layer in reversed(wiring.wired):
        if needed.intersection(layer.tops):
            kept.append(layer)
            needed.update(layer.bottoms)
    kept.reverse()
    shapes = {blob: dims for blob, dims in wiring.shapes.items() if blob in needed}
    if len({dims[0] for dims in shapes.values()}) > 1:
        raise ConversionError(
            f"{label}: inputs declare different batches"
            f" ({', '.join(f'{blob}: {dims[0]}' for blob, dims in shapes.items())}); their first dimension counts"
            " candidates and must be the same"
        )
    ids = _holding_ids(kept, shapes, outputs, layout)
    inputs = tuple(InputBlob(blob, dims, blob in ids) for blob, dims in shapes.items())
    return Network(inputs, tuple(kept), tuple(outputs), wiring.blobs)


def _holding_ids(
    layers: Sequence[WiredLayer], inputs: Iterable[str], outputs: Sequence[str], layout: Collection[str]
) -> set[str]:
    """Blobs that reach nothing but Embed layers, directly or through layers that move elements."""
    other = set(outputs)
    read: set[str] = set()
    for layer in reversed(layers):
        read.update(layer.bottoms)
        passes_on = layer.message.type in layout and other.isdisjoint(layer.tops) and read.issuperset(layer.tops)
        if layer.message.type != "Embed" and not passes_on:
            other.update(layer.bottoms)
    return {blob for blob in inputs if blob in read and blob not in other}
