"""What a caller meets of a model: inputs, outputs, limits, a sample. It is stored beside machine code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rerank_engine.arena import offsets_of
from rerank_engine.dimensions import Dim
from rerank_engine.records import Record
from rerank_engine.values import DTYPES, Sample, Value, attribute_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rerank_engine.graph import Graph

Array: TypeAlias = "NDArray[Any]"


class Interface(Record):
    """The outside of a model.

    Attributes
    ----------
    name
        Of the model.
    inputs, outputs
        Its values, in order.
    maxima
        Declared largest sizes of named dimensions.
    shrinking
        Dimensions that could become negative, each with the name of a value that has it.
    sample
        Inputs and what the model answers to them.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    maxima: Mapping[str, int]
    shrinking: tuple[tuple[Dim, str], ...]
    sample: Sample | None


def interface_of(graph: Graph) -> Interface:
    """The outside of a graph.

    Examples
    --------
    >>> from rerank_engine.graph import Graph
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(2, np.float32))
    >>> interface_of(graph).outputs
    (Value(name='w', dtype='float32', shape=(2,)),)
    """
    shrinking: dict[Dim, str] = {}
    for value in graph.values.values():
        for dim in value.shape:
            if isinstance(dim, Dim) and dim.may_be_negative:
                shrinking.setdefault(dim, value.name)
    return Interface(
        graph.name,
        tuple(graph.values[name] for name in graph.inputs),
        tuple(graph.values[name] for name in graph.outputs),
        dict(graph.maxima),
        tuple(shrinking.items()),
        graph.sample,
    )


def to_plain(interface: Interface) -> tuple[dict[str, Any], list[Array]]:
    """Split into what JSON holds, and the arrays of the sample in order."""
    sample = interface.sample
    arrays: list[Array] = []
    plain: dict[str, Any] = {
        "name": interface.name,
        "inputs": [_plain_value(value) for value in interface.inputs],
        "outputs": [_plain_value(value) for value in interface.outputs],
        "maxima": dict(interface.maxima),
        "shrinking": [[str(dim), name] for dim, name in interface.shrinking],
        "sample": None,
    }
    if sample is not None:
        arrays = [*sample.inputs.values(), *sample.outputs.values()]
        plain["sample"] = {
            "tolerance": sample.tolerance,
            "inputs": list(sample.inputs),
            "outputs": list(sample.outputs),
            "arrays": [[array.dtype.name, list(array.shape)] for array in arrays],
        }
    return plain, arrays


def from_plain(plain: Mapping[str, Any], data: memoryview) -> Interface:
    """Join what :func:`to_plain` split; ``data`` starts with the arrays, as ``arena.joined_bytes`` has them."""
    sample = None
    if plain["sample"] is not None:
        stated = plain["sample"]
        kinds = [(np.dtype(dtype), tuple(shape)) for dtype, shape in stated["arrays"]]
        offsets = offsets_of([dtype.itemsize * math.prod(shape) for dtype, shape in kinds])
        arrays = [
            np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
            for (dtype, shape), offset in zip(kinds, offsets, strict=False)
        ]
        count = len(stated["inputs"])
        sample = Sample(
            dict(zip(stated["inputs"], arrays[:count], strict=True)),
            dict(zip(stated["outputs"], arrays[count:], strict=True)),
            stated["tolerance"],
        )
    return Interface(
        plain["name"],
        tuple(_value(entry) for entry in plain["inputs"]),
        tuple(_value(entry) for entry in plain["outputs"]),
        plain["maxima"],
        tuple((dim, name) for text, name in plain["shrinking"] if isinstance(dim := Dim.parse(text), Dim)),
        sample,
    )


def _plain_value(value: Value) -> list[Any]:
    return [value.name, value.dtype, [dim if isinstance(dim, int) else str(dim) for dim in value.shape]]


def _value(plain: Sequence[Any]) -> Value:
    name, dtype, shape = plain
    if dtype not in DTYPES:
        raise ValueError(f"value {name!r} has dtype {dtype!r}")
    return Value(name, dtype, attribute_shape(shape))


def _all_close(have: Array, want: Array, tolerance: float) -> bool:
    """Whether finite values agree, by the fewest operations: this runs at every start."""
    if not want.size:
        return True
    allowed = tolerance * max(float(want.max()), -float(want.min()))
    if not allowed < math.inf:
        return False
    error = have - want
    return max(float(error.max()), -float(error.min())) <= allowed


def difference(sample: Sample, outputs: Mapping[str, Array]) -> str:
    """Tell where outputs differ from a sample by more than its tolerance; an empty text when they do not.

    >>> one = np.ones(2, np.float32)
    >>> difference(Sample({}, {"y": one}), {"y": one}), difference(Sample({}, {"y": one}), {"y": one + 1})
    ('', "output 'y' differs by 1 where at most 0.0001 is allowed")
    """
    for name, want in sample.outputs.items():
        have = outputs[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            return f"output {name!r} is {have.dtype}{have.shape}, the sample has {want.dtype}{want.shape}"
        if want.dtype.kind != "f":
            if not np.array_equal(have, want):
                return f"output {name!r} differs"
            continue
        if _all_close(have, want, sample.tolerance):
            continue
        finite = np.isfinite(want)
        if not np.array_equal(have[~finite], want[~finite], equal_nan=True):
            return f"output {name!r} differs where the sample is not finite"
        allowed = sample.tolerance * float(np.abs(want[finite]).max(initial=0.0))
        error = np.abs(have[finite].astype(np.float64) - want[finite])
        if not (error <= allowed).all():
            return f"output {name!r} differs by {float(error.max()):.3g} where at most {allowed:.3g} is allowed"
    return ""
