"""Lay out constants as the compiled code reads them. NumPy only: this runs at every load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ModelFileError

TREES = "trees"
"""The packing of an ensemble of trees, made of all its constants."""


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


def tree_bytes(constants: Mapping[str, NDArray[Any]], names: str) -> NDArray[np.uint8]:
    """Lay out the tables of an ensemble of trees.

    Parameters
    ----------
    constants
        All constants of the model.
    names
        Those of the ensemble, joined by :data:`rerank_engine.tree_tables.SEPARATOR`.
    """
    from rerank_engine.tree_tables import tables_of_constants

    tables = tables_of_constants(constants, names)
    if tables is None:
        raise ModelFileError("the image wants tables of an ensemble that has none")
    return tables.as_bytes()


def pack_all(
    constants: Mapping[str, NDArray[Any]],
    items: Iterable[tuple[str, str, int, int]],
    target: NDArray[np.uint8],
) -> None:
    """Write every (name, packing, width, offset) into the byte buffer ``target``."""
    for name, packing, width, offset in items:
        flat = tree_bytes(constants, name) if packing == TREES else pack(constants[name], packing, width).view(np.uint8)
        target[offset : offset + flat.size] = flat
