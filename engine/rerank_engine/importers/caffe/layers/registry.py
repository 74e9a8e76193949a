"""The table of layer types: what each reads and makes, and which of its parameters are understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rerank_engine.importers.caffe.writer import LayerWriter

Convert = Callable[[LayerWriter], None]

ANY = 1 << 16
"""Upper bound where a layer takes any number of bottoms or tops."""


@dataclass(frozen=True)
class LayerType:
    """One layer type.

    Attributes
    ----------
    convert
        Writes the layer's nodes.
    parameter
        Field of ``LayerParameter`` with the layer's own parameters; "" when there is none.
    understood
        Its fields that change what the layer computes, and are taken in.
    ignored
        Its fields that matter only to training or to the choice of an implementation.
    bottoms, tops
        Least and largest number.
    in_place
        Whether the top may be the bottom.
    layout
        Whether it only moves elements.
    """

    convert: Convert
    parameter: str
    understood: tuple[str, ...]
    ignored: tuple[str, ...]
    bottoms: tuple[int, int]
    tops: tuple[int, int]
    in_place: bool
    layout: bool


LAYERS: dict[str, LayerType] = {}
"""Layer type, as in ``type: "InnerProduct"``, to what becomes of it."""


def converts(
    name: str,
    parameter: str = "",
    understood: str = "",
    ignored: str = "",
    *,
    bottoms: tuple[int, int] = (1, 1),
    tops: tuple[int, int] = (1, 1),
    in_place: bool = False,
    layout: bool = False,
) -> Callable[[Convert], Convert]:
    """Put a function into the table; the names of fields are separated by spaces."""

    def add(convert: Convert) -> Convert:
        fields = (tuple(understood.split()), tuple(ignored.split()))
        LAYERS[name] = LayerType(convert, parameter, *fields, bottoms, tops, in_place, layout)
        return convert

    return add
