"""Operators that move elements: reshapes, transposes, joins, cuts, repeats, paddings."""

from __future__ import annotations

import numpy as np

from rerank_engine.dimensions import Dim, product

from .growing import DoesNotFit, Growing, N, T, Tensor, part


def _moved(
    m: Growing, op: str, source: Tensor, inputs: list[Tensor | str], shape: list[int | Dim], **extra: object
) -> Tensor:
    return m.add(op, inputs, shape, source.dtype, bound=source.bound, below=source.below, **extra)


@part(6)
def transpose(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 1)
    order = m.random.permutation(source.rank).tolist()
    extra = {} if order == list(range(source.rank))[::-1] and m.chance(0.5) else {"perm": order}
    _moved(m, "Transpose", source, [source], [source.shape[axis] for axis in order], **extra)


@part(6)
def reshape(m: Growing) -> None:
    """Merge two neighbouring dimensions, or split one of known size."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    dims: list[int | Dim] = list(source.shape)
    if source.rank > 1 and m.chance(0.5):
        at = m.integer(0, source.rank - 2)
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    else:
        at = m.axis(source, lambda dim: isinstance(dim, int) and dim > 1)
        size = dims[at]
        assert isinstance(size, int)
        factor = m.one_of([factor for factor in range(1, size + 1) if size % factor == 0])
        dims[at : at + 1] = [factor, size // factor]
    written = [dim if isinstance(dim, int) else None for dim in dims]
    for axis, dim in enumerate(dims):
        if written[axis] is None and axis < source.rank and source.shape[axis] == dim and m.chance(0.7):
            written[axis] = 0
    if written.count(None) > 1:
        raise DoesNotFit
    if None in written:
        written[written.index(None)] = -1
    elif m.chance(0.3):
        written[m.integer(0, len(written) - 1)] = -1
    _moved(m, "Reshape", source, [source, m.integers(*[entry for entry in written if entry is not None])], dims)


@part(2)
def flatten(m: Growing) -> None:
    source = m.pick_float()
    axis = m.integer(0, source.rank)
    shape = [product(source.shape[:axis]), product(source.shape[axis:])]
    _moved(m, "Flatten", source, [source], shape, axis=axis)


@part(4)
def unsqueeze(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank < 4)
    axis = m.integer(0, source.rank)
    shape = [*source.shape[:axis], 1, *source.shape[axis:]]
    m.squeezed("Unsqueeze", source, [m.signed(axis, source.rank + 1)], shape)


@part(3)
def squeeze(m: Growing) -> None:
    source = m.pick(lambda tensor: 1 in tensor.shape)
    axis = m.axis(source, lambda dim: dim == 1)
    shape = [*source.shape[:axis], *source.shape[axis + 1 :]]
    m.squeezed("Squeeze", source, [m.signed(axis, source.rank)], shape)


@part(6)
def concat(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)

    def fits(other: Tensor) -> bool:
        same = other.dtype == source.dtype and other.rank == source.rank
        return same and all(
            a == b for at, (a, b) in enumerate(zip(other.shape, source.shape, strict=True)) if at != axis
        )

    parts = [source, *(m.pick(fits) for _ in range(m.integer(1, 2)))]
    if source.is_float and m.chance(0.3):
        shape = [m.integer(1, 3) if at == axis else dim for at, dim in enumerate(source.shape)]
        if all(isinstance(dim, int) for dim in shape):
            parts.insert(m.integer(0, len(parts)), m.floats([dim for dim in shape if isinstance(dim, int)]))
    total = parts[0].shape[axis]
    for other in parts[1:]:
        total = total + other.shape[axis]
    shape = [total if at == axis else dim for at, dim in enumerate(source.shape)]
    bound = max(tensor.bound for tensor in parts)
    m.add("Concat", parts, shape, source.dtype, bound=bound, axis=m.signed(axis, source.rank))


@part(6)
def cut(m: Growing) -> None:
    """A slice of known length of a known dimension, or one that counts from the ends of a named one."""
    source = m.pick(lambda tensor: tensor.rank > 0)
    axis = m.axis(source)
    size = source.shape[axis]
    step = 1
    if isinstance(size, int):
        start = m.integer(0, max(0, size - 1))
        stop = m.integer(start, size)
        step = m.one_of([1, 1, 1, 2, -1])
        if step == -1:
            start, stop = max(stop - 1, 0), start - 1 if start else -size - 1
            count: int | Dim = len(range(size)[start : None if stop == -size - 1 else stop : -1])
        else:
            count = len(range(start, stop, step))
            start, stop = (start - size if start and m.chance(0.2) else start), (2**62 if stop == size else stop)
    else:
        start, stop, count = m.one_of(
            [(1, 2**62, size - 1), (0, -1, size - 1), (0, 2**62, size), (1, -1, size - 2), (-1, 2**62, 1)]
        )
        if m.chance(0.2):
            start, stop, step, count = -1, -(2**62), -1, size
    shape = [count if at == axis else dim for at, dim in enumerate(source.shape)]
    if m.opset < 10:
        if step != 1:
            raise DoesNotFit
        extra = {} if axis == 0 and m.chance(0.5) else {"axes": [axis]}
        _moved(m, "Slice", source, [source], shape, starts=[start], ends=[stop], **extra)
        return
    bounds: list[Tensor | str] = [m.integers(number) for number in (start, stop, m.signed(axis, source.rank), step)]
    _moved(m, "Slice", source, [source, *bounds], shape)


@part(3)
def split(m: Growing) -> None:
    source = m.pick(lambda tensor: any(isinstance(dim, int) and dim > 1 for dim in tensor.shape))
    axis = m.axis(source, lambda dim: isinstance(dim, int) and dim > 1)
    size = source.shape[axis]
    assert isinstance(size, int)
    first = m.integer(1, size - 1)
    shapes = [
        (source.dtype, tuple(part_size if at == axis else dim for at, dim in enumerate(source.shape)))
        for part_size in (first, size - first)
    ]
    if m.opset >= 13:
        made = m.add_many("Split", [source, m.integers(first, size - first)], shapes, bound=source.bound, axis=axis)
    else:
        made = m.add_many("Split", [source], shapes, bound=source.bound, axis=axis, split=[first, size - first])
    assert len(made) == 2


@part(3)
def expand(m: Growing) -> None:
    """Repeat dimensions of one, to a known size or to the shape of another value."""
    if m.opset < 8:
        raise DoesNotFit
    source = m.pick(lambda tensor: tensor.rank > 0 and 1 in tensor.shape)
    if m.chance(0.5):
        shape = [m.integer(1, 3) if dim == 1 else dim for dim in source.shape]
        target = [dim if isinstance(dim, int) else 1 for dim in shape]
        _moved(m, "Expand", source, [source, m.integers(*target)], shape)
        return
    other = m.pick(
        lambda tensor: (
            tensor.rank == source.rank and all(a in (b, 1) for a, b in zip(source.shape, tensor.shape, strict=True))
        )
    )
    sizes = m.add("Shape", [other], [source.rank], "int64", bound=1e4)
    m.forget(sizes)
    _moved(m, "Expand", source, [source, sizes], list(other.shape))


@part(3)
def tile(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 0)
    counts = [m.integer(1, 2) for _ in source.shape]
    shape = [dim * count for dim, count in zip(source.shape, counts, strict=True)]
    _moved(m, "Tile", source, [source, m.integers(*counts)], shape)


@part(3)
def pad(m: Growing) -> None:
    source = m.pick_float(lambda tensor: tensor.rank > 0)
    modes = ["constant", "constant", "edge", "reflect"]
    mode = m.one_of(modes)
    before, after = ([m.integer(0, 2) if m.chance(0.5) else 0 for _ in source.shape] for _ in range(2))
    if mode != "constant":
        for axis, dim in enumerate(source.shape):
            if isinstance(dim, Dim) or dim < 3:
                before[axis] = after[axis] = 0
    shape = [dim + low + high for dim, low, high in zip(source.shape, before, after, strict=True)]
    if m.opset < 11:
        m.add("Pad", [source], shape, bound=source.bound, mode=mode, pads=[*before, *after], value=0.5)
        return
    inputs: list[Tensor | str] = [source, m.integers(*before, *after)]
    if mode == "constant" and m.chance(0.5):
        inputs.append(m.constant(np.float32(0.75).reshape(())))
    m.add("Pad", inputs, shape, bound=source.bound, mode=mode)


@part(2)
def depth(m: Growing) -> None:
    source = m.pick_or_input(
        lambda tensor: tensor.rank == 4 and isinstance(tensor.shape[1], int) and tensor.shape[1] % 4 == 0, (N, 8, 2, T)
    )
    batch, channels, height, width = source.shape
    assert isinstance(channels, int)
    mode = m.one_of(["DCR", "CRD"])
    _moved(m, "DepthToSpace", source, [source], [batch, channels // 4, height * 2, width * 2], blocksize=2, mode=mode)


@part(3)
def new_axis_pair(m: Growing) -> None:
    """Every row of one value against every row of another, as target attention does."""
    query = m.pick_or_input(lambda tensor: tensor.rank == 2 and tensor.shape[0] == N, (N, 4))
    width = query.shape[1]
    keys = m.pick_or_input(lambda tensor: tensor.shape == (T, width), (T, width))
    left = m.squeezed("Unsqueeze", query, [1], (N, 1, query.shape[1]))
    right = m.squeezed("Unsqueeze", keys, [0], (1, T, keys.shape[1]))
    m.add(m.one_of(["Sub", "Mul", "Add"]), [left, right], (N, T, query.shape[1]), bound=query.bound * keys.bound + 8)


@part(1)
def trilu(m: Growing) -> None:
    source = m.pick(lambda tensor: tensor.rank > 1 and tensor.dtype in ("float32", "int64"))
    inputs: list[Tensor | str] = [source]
    if m.chance(0.5):
        inputs.append(m.constant(np.int64(m.integer(-2, 2)).reshape(())))
    _moved(m, "Trilu", source, inputs, list(source.shape), upper=m.integer(0, 1))


@part(0.5)
def first_few(m: Growing) -> None:
    """The first few of a named dimension: a list that has fewer is an error when the model runs."""
    source = m.pick(lambda tensor: tensor.rank > 0 and isinstance(tensor.shape[0], Dim))
    if m.opset < 10:
        raise DoesNotFit
    count = m.integer(2, 4)
    bounds: list[Tensor | str] = [m.integers(0), m.integers(count), m.integers(0)]
    _moved(m, "Slice", source, [source, *bounds], [count, *source.shape[1:]])
