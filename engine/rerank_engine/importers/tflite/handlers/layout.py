"""Operators that move values without computing: shapes, joins, cuts, fills."""

from __future__ import annotations

from rerank_engine.importers.tflite.call import LARGEST, Call
from rerank_engine.importers.tflite.handlers.registry import handles
from rerank_engine.importers.tflite.schema import MIRROR_PAD_MODES


@handles("RESHAPE")
def _reshape(call: Call) -> None:
    call.arity(1, 2)
    options = call.options("ReshapeOptions")
    if call.has(1) and call.scope.constant(call.operator.inputs[1]) is None:
        call.result(call.emit("Reshape", call.input(0), call.long(1)))
        return
    shape = call.integers(1, "the shape") if call.has(1) else [int(size) for size in options["new_shape"]]
    if not call.has(1) and shape == [0]:
        shape = []  # How old converters write a scalar.
    if any(size < -1 for size in shape) or shape.count(-1) > 1 or (0 in shape and -1 in shape):
        raise call.refuse(f"shape {shape} is not supported")
    name = call.new(shape, "int64", "shape")
    call.result(call.emit("Reshape", call.input(0), name, **({"allowzero": 1} if 0 in shape else {})))


@handles("TRANSPOSE")
def _transpose(call: Call) -> None:
    call.arity(2)
    call.no_options()
    rank = call.rank(0)
    order = [call.axis(axis, rank) for axis in call.integers(1, "the order of axes")]
    if sorted(order) != list(range(rank)):
        raise call.refuse(f"{order} is no order of {rank} axes")
    call.result(call.emit("Transpose", call.input(0), perm=order))


@handles("SQUEEZE")
def _squeeze(call: Call) -> None:
    call.arity(1)
    axes = [call.axis(int(axis), call.rank(0)) for axis in call.options("SqueezeOptions")["squeeze_dims"]]
    if not axes:
        if -1 in call.shape(0):
            raise call.refuse(f"shape {list(call.shape(0))} varies, so the axes to drop must be named")
        axes = [axis for axis, size in enumerate(call.shape(0)) if size == 1]
    call.result(call.emit("Squeeze", call.input(0), call.new(axes, "int64", "axes")))


@handles("EXPAND_DIMS")
def _expand_dims(call: Call) -> None:
    call.arity(2)
    call.no_options()
    axis = call.axis(call.integer(1, "the axis"), call.rank(0) + 1)
    call.result(call.unsqueeze(call.input(0), [axis]))


@handles("CONCATENATION")
def _concatenation(call: Call) -> None:
    call.arity(1, len(call.operator.inputs))
    options = call.options("ConcatenationOptions")
    value = call.emit("Concat", *call.inputs(), axis=call.axis(options["axis"], call.rank(0)))
    call.result(call.activate(value, options["fused_activation"]))


@handles("PACK")
def _pack(call: Call) -> None:
    count = call.arity(1, len(call.operator.inputs))
    options = call.options("PackOptions")
    if options["values_count"] != count:
        raise call.refuse(f"it has {count} inputs and packs {options['values_count']}")
    axis = call.axis(options["axis"], call.rank(0) + 1)
    call.result(call.emit("Concat", *(call.unsqueeze(value, [axis]) for value in call.inputs()), axis=axis))


@handles("UNPACK")
def _unpack(call: Call) -> None:
    options = call.options("UnpackOptions")
    count = int(options["num"])
    call.arity(1, outputs=count)
    axis = call.axis(options["axis"], call.rank(0))
    if call.shape(0)[axis] != count:
        raise call.refuse(f"axis {axis} of shape {list(call.shape(0))} does not have the size {count}")
    value = call.input(0)
    for position in range(count):
        call.result(call.emit("Gather", value, call.new(position, "int64", "index"), axis=axis), position)


@handles("SPLIT")
def _split(call: Call) -> None:
    count = int(call.options("SplitOptions")["num_splits"])
    call.arity(2, outputs=count)
    axis = call.axis(call.integer(0, "the axis"), call.rank(1))
    size = call.shape(1)[axis]
    if size < 0 or count < 1 or size % count:
        raise call.refuse(f"axis {axis} of shape {list(call.shape(1))} cannot be cut into {count} equal parts")
    _cut(call, call.input(1), axis, [size // count] * count)


@handles("SPLIT_V")
def _split_sizes(call: Call) -> None:
    count = int(call.options("SplitVOptions")["num_splits"])
    call.arity(3, outputs=count)
    sizes, axis = call.integers(1, "the sizes"), call.axis(call.integer(2, "the axis"), call.rank(0))
    whole = call.shape(0)[axis]
    if sizes.count(-1) == 1 and whole >= 0:
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    if len(sizes) != count or min(sizes, default=0) < 0 or (whole >= 0 and sum(sizes) != whole):
        raise call.refuse(f"axis {axis} of shape {list(call.shape(0))} cannot be cut into {sizes}")
    _cut(call, call.input(0), axis, sizes)


def _cut(call: Call, value: str, axis: int, sizes: list[int]) -> None:
    names = call.emit("Split", value, call.new(sizes, "int64", "sizes"), outputs=len(sizes), axis=axis)
    for position in range(len(sizes)):
        call.result(names if position == 0 else f"{names}:{position}", position)


@handles("SLICE")
def _slice(call: Call) -> None:
    call.arity(3)
    call.no_options()
    begins, sizes = call.integers(1, "the begin"), call.integers(2, "the size")
    rank = call.rank(0)
    if not len(begins) == len(sizes) == rank or min(begins, default=0) < 0 or min(sizes, default=0) < -1:
        raise call.refuse(f"begin {begins} and size {sizes} do not fit rank {rank}")
    ends = [LARGEST if size == -1 else begin + size for begin, size in zip(begins, sizes, strict=True)]
    for axis, (end, whole) in enumerate(zip(ends, call.shape(0), strict=True)):
        if end != LARGEST and 0 <= whole < end:
            raise call.refuse(f"axis {axis} of size {whole} ends before {end}")
    call.result(_emit_slice(call, call.input(0), begins, ends, [1] * rank))


def _emit_slice(call: Call, value: str, begins: list[int], ends: list[int], steps: list[int]) -> str:
    kept = [
        axis
        for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True))
        if (begin, end, step) != (0, LARGEST, 1)
    ]
    if not kept:
        return value
    names = (
        call.new([entries[axis] for axis in kept], "int64", what)
        for entries, what in ((begins, "begins"), (ends, "ends"))
    )
    return call.emit(
        "Slice",
        value,
        *names,
        call.new(kept, "int64", "axes"),
        call.new([steps[axis] for axis in kept], "int64", "steps"),
    )


@handles("STRIDED_SLICE")
def _strided_slice(call: Call) -> None:
    call.arity(4)
    options = call.options("StridedSliceOptions")
    begins, ends, steps = (
        call.integers(position, f"the {what}") for position, what in enumerate(("begin", "end", "stride"), start=1)
    )
    if not len(begins) == len(ends) == len(steps):
        raise call.refuse(f"begin {begins}, end {ends} and stride {steps} have different lengths")
    if options["offset"]:
        ends = [begin + size for begin, size in zip(begins, ends, strict=True)]
    count, rank = len(begins), call.rank(0)

    def marked(name: str, entry: int) -> bool:
        return bool(options[f"{name}_mask"] >> entry & 1)

    ellipses = [entry for entry in range(count) if marked("ellipsis", entry)]
    if len(ellipses) > 1:
        raise call.refuse("it has more than one ellipsis")
    named = sum(not marked("new_axis", entry) and entry not in ellipses for entry in range(count))
    if named > rank:
        raise call.refuse(f"it names {named} axes of rank {rank}")
    lows, highs, strides = [0] * rank, [LARGEST] * rank, [1] * rank
    dropped: list[int] = []
    inserted: list[int] = []
    axis = place = 0  # Of the input, and of the output.
    for entry in range(count):
        if entry in ellipses:
            axis, place = axis + rank - named, place + rank - named
        elif marked("new_axis", entry):
            inserted.append(place)
            place += 1
        else:
            if steps[entry] == 0:
                raise call.refuse(f"the stride of axis {axis} is 0")
            if marked("shrink_axis", entry):
                lows[axis] = begins[entry]
                highs[axis] = begins[entry] + 1 if begins[entry] != -1 else LARGEST
                dropped.append(axis)
            else:
                backward = steps[entry] < 0
                strides[axis] = steps[entry]
                lows[axis] = (LARGEST if backward else 0) if marked("begin", entry) else begins[entry]
                highs[axis] = (-LARGEST if backward else LARGEST) if marked("end", entry) else ends[entry]
                place += 1
            axis += 1
    value = _emit_slice(call, call.input(0), lows, highs, strides)
    if dropped:
        value = call.emit("Squeeze", value, call.new(dropped, "int64", "axes"))
    call.result(call.unsqueeze(value, inserted) if inserted else value)


@handles("REVERSE_V2")
def _reverse(call: Call) -> None:
    call.arity(2)
    call.no_options()
    axes = [call.axis(axis, call.rank(0)) for axis in call.integers(1, "the axes")]
    begins, ends, steps = ([number] * len(axes) for number in (-1, -LARGEST, -1))
    names = (call.new(entries, "int64", "slice") for entries in (begins, ends, axes, steps))
    call.result(call.emit("Slice", call.input(0), *names))


@handles("PAD", "PADV2")
def _pad(call: Call) -> None:
    call.arity(3 if call.operator.name == "PADV2" else 2)
    call.no_options()
    value = call.input(2) if call.has(2) else call.new(0, call.dtype(0), "zero")
    if call.has(2) and call.rank(2):
        value = call.reshape(value, [])
    call.result(call.emit("Pad", call.input(0), _pads(call), value))


@handles("MIRROR_PAD")
def _mirror_pad(call: Call) -> None:
    call.arity(2)
    mode = call.choice("mode", call.options("MirrorPadOptions")["mode"], MIRROR_PAD_MODES)
    if mode != "REFLECT":
        raise call.refuse(f"mode {mode} is not supported; only REFLECT is")
    call.result(call.emit("Pad", call.input(0), _pads(call), mode="reflect"))


def _pads(call: Call) -> str:
    pads = call.constant(1, "the padding")
    if pads.shape != (call.rank(0), 2) or pads.dtype.kind != "i" or pads.min(initial=0) < 0:
        raise call.refuse(f"padding of shape {list(pads.shape)} does not fit rank {call.rank(0)}")
    return call.new(pads.T.reshape(-1), "int64", "pads")


@handles("TILE")
def _tile(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("Tile", call.input(0), call.long(1)))


@handles("BROADCAST_TO")
def _broadcast_to(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("Expand", call.input(0), call.long(1)))


@handles("BROADCAST_ARGS")
def _broadcast_shapes(call: Call) -> None:
    call.arity(2)
    call.no_options()
    lengths = [call.shape(position)[0] if call.rank(position) == 1 else -1 for position in (0, 1)]
    if min(lengths) < 0:
        raise call.refuse("the lengths of its shapes vary")
    left, right = (
        call.emit("Concat", call.new([1] * (max(lengths) - length), "int64", "ones"), call.long(position), axis=0)
        if length < max(lengths)
        else call.long(position)
        for position, length in enumerate(lengths)
    )
    is_one = call.emit("Equal", left, call.new(1, "int64", "one"))
    call.result(call.cast(call.emit("Where", is_one, right, left), "int64", call.output_dtype()))


@handles("FILL")
def _fill(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("Expand", call.input(1), call.long(0)))


@handles("SHAPE")
def _shape(call: Call) -> None:
    call.arity(1)
    call.options("ShapeOptions")
    call.result(call.cast(call.emit("Shape", call.scope.stored(call.operator.inputs[0])), "int64", call.output_dtype()))


@handles("RANGE")
def _range(call: Call) -> None:
    call.arity(3)
    call.no_options()
    call.result(call.emit("Range", *(call.reshape(value, []) for value in call.inputs())))
