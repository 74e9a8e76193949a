"""Sizes of the named dimensions in a verification: everything that it knows of dimensions stands here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rerank_engine.errors import InputError
from rerank_engine.graph import CANDIDATES, Graph, Value, concrete, names_in

OTHER_SIZES = (3, 1, 8, 5)
"""Sizes of dimensions other than the candidates, taken in turn, so that names rarely share a size."""


def case_sizes(graph: Graph, lengths: Sequence[int]) -> list[dict[str, int]]:
    """Choose the sizes to verify a model at.

    Parameters
    ----------
    graph
        The model.
    lengths
        Numbers of candidates.

    Returns
    -------
    list of dict
        Size by name, one dict for each length up to the declared maximum; a single empty dict when nothing varies.

    Raises
    ------
    InputError
        No length is left.

    Examples
    --------
    >>> from rerank_engine.graph import Dim
    >>> graph = Graph("g", inputs=["x"], values={"x": Value("x", "float32", (Dim("N"), Dim("T"), 4))})
    >>> case_sizes(graph, [0, 7])
    [{'N': 0, 'T': 3}, {'N': 7, 'T': 1}]
    """
    names = sorted(names_in(dim for name in graph.inputs for dim in graph.values[name].shape))
    others = [name for name in names if name != CANDIDATES]
    if not names:
        return [{}]
    counts: Sequence[int | None] = list(dict.fromkeys(lengths)) if CANDIDATES in names else [None] * len(OTHER_SIZES)
    found = []
    for turn, count in enumerate(counts):
        sizes = {} if count is None else {CANDIDATES: count}
        for position, name in enumerate(others):
            size = OTHER_SIZES[(turn + position) % len(OTHER_SIZES)]
            sizes[name] = min(size, graph.maxima.get(name, size))
        if sizes.get(CANDIDATES, 0) <= graph.maxima.get(CANDIDATES, sizes.get(CANDIDATES, 0)):
            found.append(sizes)
    if not found:
        raise InputError(
            f"lengths {list(lengths)}: none is within the model's declared maximum of"
            f" {graph.maxima.get(CANDIDATES)} candidates"
        )
    return found


def shape_at(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of a value once the named dimensions are known."""
    return concrete(value.shape, sizes)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Write sizes as people do: ``N=7, T=3``; ``fixed`` when nothing varies."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed"


def scores_per_candidate(value: Value, sizes: Mapping[str, int]) -> bool:
    """Whether a result holds one number a candidate, which can be ranked."""
    shape = shape_at(value, sizes)
    count = sizes.get(CANDIDATES, 0)
    total = 1
    for size in shape:
        total *= size
    return bool(shape) and CANDIDATES in names_in(value.shape) and shape[0] == count == total
