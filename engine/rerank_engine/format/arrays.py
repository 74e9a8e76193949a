"""Where arrays stand in the WEIGHTS section: constants first, then the sample's inputs and outputs.

Each array begins at the next multiple of :data:`~.layout.ALIGNMENT` behind the one before it, with zeros between, so
that no byte of the section is without a meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError
from rerank_engine.format.layout import ALIGNMENT, Source, aligned
from rerank_engine.graph import DTYPES


@dataclass(frozen=True)
class Extent:
    """Where an array's bytes stand.

    Attributes
    ----------
    name
        Of the value.
    dtype
        A key of :data:`rerank_engine.graph.DTYPES`.
    shape
        Sizes of its dimensions.
    byte_offset
        From the start of the WEIGHTS section.
    byte_size
        As stated by the file; equal to the size of shape and dtype in one that is sound.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    byte_offset: int
    byte_size: int


@dataclass(frozen=True)
class Placement:
    """All arrays of a file, in the order in which they stand in it."""

    constants: tuple[Extent, ...] = ()
    sample_inputs: tuple[Extent, ...] = ()
    sample_outputs: tuple[Extent, ...] = ()

    def __iter__(self) -> Iterator[Extent]:
        yield from self.constants
        yield from self.sample_inputs
        yield from self.sample_outputs

    @property
    def byte_size(self) -> int:
        """Bytes of the WEIGHTS section."""
        return max((extent.byte_offset + extent.byte_size for extent in self), default=0)


def place(
    constants: Iterable[tuple[str, NDArray[Any]]],
    sample_inputs: Iterable[tuple[str, NDArray[Any]]] = (),
    sample_outputs: Iterable[tuple[str, NDArray[Any]]] = (),
) -> Placement:
    """Give each array its place.

    Parameters
    ----------
    constants, sample_inputs, sample_outputs
        Names and arrays.

    Raises
    ------
    GraphError
        An array has a dtype that a graph does not know.

    Examples
    --------
    >>> placement = place([("w", np.zeros(3, np.float32)), ("b", np.zeros(1, np.float32))])
    >>> [(extent.name, extent.byte_offset, extent.byte_size) for extent in placement]
    [('w', 0, 12), ('b', 64, 4)]
    """
    end = 0

    def placed(arrays: Iterable[tuple[str, NDArray[Any]]]) -> tuple[Extent, ...]:
        nonlocal end
        extents = []
        for name, array in arrays:
            extents.append(Extent(name, array.dtype.name, array.shape, aligned(end), array.nbytes))
            end = extents[-1].byte_offset + array.nbytes
        return tuple(extents)

    return Placement(placed(constants), placed(sample_inputs), placed(sample_outputs))


def check_placement(placement: Placement, weights_size: int, source: Source, *, more_arrays: bool = False) -> None:
    """Check that arrays stand where the format puts them, inside of the section, and fill it.

    Parameters
    ----------
    placement
        What the file states.
    weights_size
        Bytes of the WEIGHTS section.
    source
        For messages.
    more_arrays
        The file is of a newer minor version, and arrays may follow that this one does not know.

    Raises
    ------
    ModelFileError
        Names the array.
    """
    end = 0
    for extent in placement:
        where = f"{extent.name!r} at bytes {extent.byte_offset} to {extent.byte_offset + extent.byte_size}"
        needed = DTYPES[extent.dtype].itemsize * math.prod(extent.shape)
        if extent.byte_size != needed:
            raise source.damaged(
                "section GRAPH", f"array {extent.name!r} has {extent.byte_size} bytes, expected {needed}"
            )
        if extent.byte_offset != aligned(end):
            raise source.damaged("section GRAPH", f"array {where} of WEIGHTS, expected to begin at {aligned(end)}")
        end = extent.byte_offset + extent.byte_size
        if end > weights_size:
            raise source.damaged("section GRAPH", f"array {where} of {weights_size} in WEIGHTS")
    if end != weights_size and not more_arrays:
        raise source.damaged("section WEIGHTS", f"{weights_size} bytes, but its arrays end at {end}")


def stored_parts(placement: Placement, arrays: Sequence[NDArray[np.uint8]]) -> list[bytes | memoryview]:
    """Lay out the WEIGHTS section: bytes of the arrays with zeros between them."""
    parts: list[bytes | memoryview] = []
    end = 0
    for extent, array in zip(placement, arrays, strict=True):
        parts += [bytes(extent.byte_offset - end), array.data]
        end = extent.byte_offset + extent.byte_size
    return parts


def plain_bytes(name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    """View an array as bytes in row-major order; only other layouts are copied.

    Raises
    ------
    GraphError
        A bool array holds other bytes than 0 and 1.
    """
    data = np.asarray(array, order="C").ravel().view(np.uint8)
    if array.dtype.kind == "b" and data.max(initial=0) > 1:
        raise GraphError(f"bool array {name!r} holds bytes other than 0 and 1; make it with astype(bool)")
    return data


def view_arrays(weights: memoryview, placement: Placement, source: Source) -> list[NDArray[Any]]:
    """Make a read-only array of each extent, without a copy.

    Parameters
    ----------
    weights
        The WEIGHTS section, read-only and 64-byte aligned.
    placement
        Checked by :func:`check_placement`.
    source
        For messages.

    Raises
    ------
    ModelFileError
        Bytes between arrays are not zero, or a bool is neither 0 nor 1.
    """
    views = []
    end = 0
    for extent in placement:
        if any(weights[end : extent.byte_offset]):
            raise source.damaged("section WEIGHTS", f"padding before {extent.name!r} is not zero")
        end = extent.byte_offset + extent.byte_size
        views.append(_view(weights, extent, source))
    return views


def aligned_copy(data: memoryview) -> memoryview:
    """Copy bytes to a read-only place at a multiple of :data:`~.layout.ALIGNMENT`."""
    room = np.empty(data.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + data.nbytes]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy.data.toreadonly()


def _view(weights: memoryview, extent: Extent, source: Source) -> NDArray[Any]:
    dtype = DTYPES[extent.dtype]
    if extent.byte_size == 0:
        # A view of no bytes would need a place even where the section is empty.
        array = np.empty(extent.shape, dtype)
        array.flags.writeable = False
        return array
    array = np.ndarray(extent.shape, dtype, buffer=weights, offset=extent.byte_offset)
    if extent.dtype == "bool" and array.view(np.uint8).max() > 1:
        raise source.damaged("section WEIGHTS", f"bool array {extent.name!r} holds bytes other than 0 and 1")
    return array
