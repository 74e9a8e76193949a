"""Give every dimension name its size, from the arrays that a caller brought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rerank_engine.dimensions import Dim, names_in
from rerank_engine.errors import InputError
from rerank_engine.values import Value, concrete

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bind_sizes(
    inputs: Iterable[Value], arrays: Mapping[str, NDArray[Any]], maxima: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Read the sizes of all named dimensions off the shapes of the inputs.

    Parameters
    ----------
    inputs
        What the graph declares.
    arrays
        An array of the declared rank for each of them.
    maxima
        Declared largest sizes.

    Returns
    -------
    dict
        Size by name.

    Raises
    ------
    InputError
        A shape does not fit, two inputs disagree, or a size is above its declared maximum.

    Examples
    --------
    >>> import numpy as np
    >>> bind_sizes([Value("x", "float32", (Dim("N"), 8))], {"x": np.zeros((3, 8), np.float32)})
    {'N': 3}
    """
    sizes: dict[str, int] = {}
    sources: dict[str, str] = {}
    values = list(inputs)
    for value in values:
        shape = arrays[value.name].shape
        if len(shape) != len(value.shape):
            raise InputError(f"input {value} got shape {shape}")
        for axis, (dim, have) in enumerate(zip(value.shape, shape, strict=True)):
            if isinstance(dim, int):
                if dim != have:
                    raise InputError(f"input {value} got shape {shape}")
                continue
            solved = _solve(dim, have)
            if solved is None:
                continue
            name, size = solved
            if size < 0:
                raise InputError(f"input {value} got shape {shape}: dimension {axis} must have the form {dim}")
            if sizes.setdefault(name, size) != size:
                raise InputError(
                    f"input {value} got shape {shape}; input {sources[name]!r} says {name} = {sizes[name]}"
                )
            sources.setdefault(name, value.name)
    for value in values:
        if names_in(value.shape) <= set(sizes) and concrete(value.shape, sizes) != arrays[value.name].shape:
            raise InputError(f"input {value} got shape {arrays[value.name].shape}; the inputs say {sizes}")
    for name, most in (maxima or {}).items():
        if sizes.get(name, 0) > most:
            raise InputError(
                f"{name} = {sizes[name]} (input {sources[name]!r}) is above the model's declared maximum of {most}"
            )
    return sizes


def _solve(dim: Dim, have: int) -> tuple[str, int] | None:
    """Solve ``scale * name + offset = have``; a size of -1 where it has no solution, None where it is no such sum."""
    scale, offset, found = 0, 0, ""
    for names, coefficient in dim.terms:
        if not names:
            offset = coefficient
        elif len(names) == 1 and not found:
            found, scale = names[0], coefficient
        else:
            return None
    size, rest = divmod(have - offset, scale)
    return found, -1 if rest else size
