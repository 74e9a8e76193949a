"""Operators that pick, scatter and sort."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_engine.dimensions import Dim

from .growing import DoesNotFit, Growing, Tensor, fixed, part

_INDEX = ("int64", "int32")


def _indices(m: Growing, size: int | Dim) -> Tensor:
    """Indices into a dimension: computed ones that are known to fit, or constants."""
    fitting = [
        tensor
        for tensor in m.tensors
        if tensor.dtype in _INDEX
        and tensor.below is not None
        and (tensor.below == size or (isinstance(size, int) and isinstance(tensor.below, int) and tensor.below <= size))
    ]
    if fitting and m.chance(0.7):
        found: Tensor = m.one_of(fitting)
        return found
    if isinstance(size, Dim):
        # The first and the last of a named dimension exist whenever it is not empty.
        shape = m.one_of([(), (1,), (2,)])
        return Tensor(m.constant(m.random.integers(-1, 1, shape), "int64"), "int64", shape)
    if size < 1:
        raise DoesNotFit
    shape = m.one_of([(), (1,), (3,), (2, 2)])
    return Tensor(m.constant(m.random.integers(-size, size, shape), m.one_of(_INDEX)), "int64", shape)


@part(7)
def gather(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)
    index = _indices(m, source.shape[axis])
    shape = [*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]]
    if m.opset < 11 and (np.asarray(m.constants.get(index.name, 0)) < 0).any():
        raise DoesNotFit
    m.add(
        "Gather",
        [source, index],
        shape,
        source.dtype,
        bound=source.bound,
        below=source.below,
        axis=m.signed(axis, source.rank),
    )


@part(6)
def embedding(m: Growing) -> None:
    """Rows of a table by ids."""
    index = m.pick(lambda tensor: tensor.dtype in _INDEX and isinstance(tensor.below, int))
    assert isinstance(index.below, int)
    table = m.floats([index.below + m.integer(0, 2), m.one_of([1, 4, 5])])
    m.add("Gather", [table, index], [*index.shape, table.shape[1]], bound=3.0)


@part(8)
def gather_elements(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 0 and tensor.dtype in ("float32", "int64"))
    axis = m.axis(source)
    size = source.shape[axis]

    def fits(tensor: Tensor) -> bool:
        same = tensor.dtype in _INDEX and tensor.rank == source.rank and tensor.below == size
        return same and all(
            a == b for at, (a, b) in enumerate(zip(tensor.shape, source.shape, strict=True)) if at != axis
        )

    if m.chance(0.7):
        shape = tuple(m.integer(1, 3) if at == axis else dim for at, dim in enumerate(source.shape))
        is_known = isinstance(size, int) and size > 0
        index = m.pick_or_input(fits, shape, size) if is_known else m.pick(fits)  # type: ignore[arg-type]
    else:
        sizes = fixed([m.integer(1, 3) if at == axis else dim for at, dim in enumerate(source.shape)])
        if not isinstance(size, int) or size < 1:
            raise DoesNotFit
        index = Tensor(m.constant(m.random.integers(-size, size, sizes), "int64"), "int64", tuple(sizes))
    m.add(
        "GatherElements", [source, index], index.shape, source.dtype, bound=source.bound, below=source.below, axis=axis
    )


@part(3)
def gather_nd(m: Growing) -> None:
    source = m.pick(
        lambda tensor: tensor.rank > 1 and all(isinstance(dim, int) and dim > 0 for dim in tensor.shape[:2])
    )
    first, second = fixed(source.shape[:2])
    shape = m.one_of([(2,), (3, 2), (1, 2, 2), (3, 1), (1,)])
    limits = (first, second)[: shape[-1]]
    index = np.stack([m.random.integers(-limit, limit, shape[:-1]) for limit in limits], axis=-1)
    out = [*shape[:-1], *source.shape[shape[-1] :]]
    m.add("GatherND", [source, m.constant(index, "int64")], out, source.dtype, bound=source.bound, below=source.below)


@part(4)
def scatter_elements(m: Growing) -> None:
    source = m.pick_float(
        lambda tensor: tensor.rank > 0 and all(isinstance(dim, int) and dim > 0 for dim in tensor.shape)
    )
    axis = m.axis(source)
    sizes = fixed(source.shape)
    shape = [m.integer(1, size) for size in sizes]
    reduction = m.one_of(["none", "add", "mul", "max", "min"][: 5 if m.opset >= 18 else 3 if m.opset >= 16 else 1])
    if reduction == "none":
        # Without a reduction the indices of a line must differ.
        lines = np.argsort(
            m.random.random([sizes[axis] if at == axis else size for at, size in enumerate(shape)]), axis=axis
        )
        index = np.take(lines, range(shape[axis]), axis=axis)
    else:
        index = m.random.integers(-sizes[axis], sizes[axis], shape)
    updates = m.floats(shape)
    extra = {} if reduction == "none" and m.chance(0.5) else {"reduction": reduction} if m.opset >= 16 else {}
    m.add(
        "ScatterElements",
        [source, m.constant(index, "int64"), updates],
        source.shape,
        bound=source.bound * 4 + 8,
        axis=axis,
        **extra,
    )


@part(3)
def scatter_nd(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank > 0 and isinstance(tensor.shape[0], int) and tensor.shape[0] > 0)
    first = source.shape[0]
    assert isinstance(first, int)
    count = m.integer(1, first)
    index = m.random.permutation(first)[:count].reshape(count, 1)
    if m.chance(0.5):
        cut = m.pick_float(lambda tensor: tensor.shape == (count, *source.shape[1:]))
    else:
        cut = m.floats([count, *fixed(source.shape[1:])])
    m.add("ScatterND", [source, m.constant(index, "int64"), cut], source.shape, bound=source.bound + cut.bound)


@part(3)
def top_k(m: Growing) -> None:
    source = m.pick_distinct(lambda tensor: any(isinstance(dim, int) and dim > 0 for dim in tensor.shape))
    axis = m.axis(source, lambda dim: isinstance(dim, int) and dim > 0)
    size = source.shape[axis]
    assert isinstance(size, int)
    count = m.integer(1, size)
    shape = tuple(count if at == axis else dim for at, dim in enumerate(source.shape))
    extra: dict[str, Any] = {"largest": m.integer(0, 1)} if m.opset >= 11 else {"k": count} if m.opset < 10 else {}
    values, index = m.add_many(
        "TopK",
        [source, m.integers(count)] if m.opset >= 10 else [source],
        [("float32", shape), ("int64", shape)],
        bound=source.bound,
        below=size,
        axis=m.signed(axis, source.rank),
        **extra,
    )
    assert values.is_float
    assert index.below == size


@part(2)
def top_of_named(m: Growing) -> None:
    """The best of the candidates or of the history; a short list is an error, for everyone."""
    if m.opset < 11:
        raise DoesNotFit
    source = m.pick_distinct(lambda tensor: any(isinstance(dim, Dim) for dim in tensor.shape))
    axis = m.axis(source, lambda dim: isinstance(dim, Dim))
    count = m.one_of([1, 1, 1, 2])
    shape = tuple(count if at == axis else dim for at, dim in enumerate(source.shape))
    m.add_many(
        "TopK",
        [source, m.integers(count)],
        [("float32", shape), ("int64", shape)],
        bound=source.bound,
        below=source.shape[axis],
        axis=axis,
    )


@part(4)
def arg(m: Growing) -> None:
    source = m.pick_distinct(lambda tensor: tensor.rank > 0 and 0 not in tensor.shape)
    axis = m.axis(source)
    place = m.signed(axis, source.rank)
    keep = m.integer(0, 1)
    shape = [1 if at == axis else dim for at, dim in enumerate(source.shape) if keep or at != axis]
    extra = {"select_last_index": m.integer(0, 1)} if m.opset >= 12 else {}
    op = m.one_of(["ArgMax", "ArgMin"])
    m.add(
        op,
        [source],
        shape,
        "int64",
        bound=50.0,
        below=source.shape[axis],
        axis=place,
        keepdims=keep,
        **extra,
    )


@part(4)
def running_sum(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 0 and tensor.dtype in ("float32", "int64", "int32"))
    if source.is_float:
        source = m.small(source, 100.0)
    axis = m.axis(source)
    place = m.constant(np.int64(m.signed(axis, source.rank)).reshape(()))
    m.add(
        "CumSum",
        [source, place],
        source.shape,
        source.dtype,
        bound=50 * source.bound,
        exclusive=m.integer(0, 1),
        reverse=m.integer(0, 1),
    )


@part(2)
def one_hot(m: Growing) -> None:
    index = m.pick(lambda tensor: tensor.dtype == "int64" and tensor.rank > 0)
    count = m.integer(1, 6)
    axis = m.integer(-1, index.rank)
    place = index.rank if axis == -1 else axis
    shape = [*index.shape[:place], count, *index.shape[place:]]
    values = m.constant(np.array([-0.5, 2.0], np.float32))
    m.add("OneHot", [index, m.constant(np.int64(count).reshape(())), values], shape, bound=2.0, axis=axis)


@part(3)
def reverse_sequence(m: Growing) -> None:
    source = m.pick_float(
        lambda tensor: tensor.rank > 1 and isinstance(tensor.shape[0], int) and tensor.shape[1] not in (0,)
    )
    (batch,) = fixed(source.shape[:1])
    most = source.shape[1] if isinstance(source.shape[1], int) else 1
    lengths = m.constant(m.random.integers(1, most + 1, batch), "int64")
    m.add("ReverseSequence", [source, lengths], source.shape, bound=source.bound, batch_axis=0, time_axis=1)


@part(8)
def scatter_by_computed(m: Growing) -> None:
    """Numbers put where computed indices say, one for each row."""
    if m.opset < 16:
        raise DoesNotFit
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)
    size = source.shape[axis]

    def fits(tensor: Tensor) -> bool:
        same = tensor.dtype in _INDEX and tensor.rank == source.rank and tensor.below == size
        return same and all(
            a == b for at, (a, b) in enumerate(zip(tensor.shape, source.shape, strict=True)) if at != axis
        )

    index = m.pick(fits)
    updates = m.pick_float(lambda tensor: tensor.shape == index.shape)
    reduction = "add" if m.opset < 18 else m.one_of(["add", "max"])
    m.add(
        "ScatterElements",
        [source, index, updates],
        source.shape,
        bound=source.bound + 50 * updates.bound,
        axis=axis,
        reduction=reduction,
    )


@part(6)
def batched_gather_nd(m: Growing) -> None:
    """Entries of each row by computed indices of the same row."""
    if m.opset < 12:
        raise DoesNotFit
    source = m.pick(lambda tensor: tensor.rank > 1)
    size = source.shape[1]
    if not isinstance(size, int) or size < 1:
        raise DoesNotFit

    def fits(tensor: Tensor) -> bool:
        same = tensor.rank >= 2 and tensor.below == size and tensor.shape[0] == source.shape[0]
        return same and tensor.shape[-1] == 1

    index = m.pick_or_input(fits, m.one_of([(source.shape[0], 1), (source.shape[0], 2, 1)]), size)
    shape = [*index.shape[:-1], *source.shape[2:]]
    m.add("GatherND", [source, index], shape, source.dtype, bound=source.bound, below=source.below, batch_dims=1)
