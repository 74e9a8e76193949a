"""Lay out constants as the compiled code reads them. NumPy only: this runs at every load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(array: NDArray[Any], packing: str, width: int) -> NDArray[Any]:
    """Lay out one constant.

    Parameters
    ----------
    array
        The constant; a matrix (K, C) for "panels" and "columns".
    packing
        See :class:`rerank_engine.plan.WeightItem`.
    width
        Columns of a panel.

    Returns
    -------
    ndarray
        Flat, in the constant's dtype.

    Examples
    --------
    >>> pack(np.arange(6, dtype=np.float32).reshape(2, 3), "panels", 2)
    array([0., 1., 3., 4., 2., 0., 5., 0.], dtype=float32)
    """
    if packing == "plain":
        return np.ascontiguousarray(array).reshape(-1)
    if packing == "columns":
        return np.ascontiguousarray(array.T).reshape(-1)
    columns = array.shape[-1]
    padded = np.zeros((*array.shape[:-1], -(-columns // width) * width), dtype=array.dtype)
    padded[..., :columns] = array
    if packing == "padded":
        return padded.reshape(-1)
    panels = padded.reshape(array.shape[0], padded.shape[1] // width, width).swapaxes(0, 1)
    return np.ascontiguousarray(panels).reshape(-1)


def pack_all(
    constants: Mapping[str, NDArray[Any]],
    items: Iterable[tuple[str, str, int, int]],
    target: NDArray[np.uint8],
) -> None:
    """Write every (name, packing, width, offset) into the byte buffer ``target``."""
    for name, packing, width, offset in items:
        flat = pack(constants[name], packing, width).view(np.uint8)
        target[offset : offset + flat.size] = flat
