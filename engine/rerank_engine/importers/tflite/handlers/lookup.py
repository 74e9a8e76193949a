"""Operators that pick values by index."""

from __future__ import annotations

import numpy as np

from rerank_engine.importers.positions import MOST_POSITIONS
from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles


@handles("GATHER")
def _gather(call: Call) -> None:
    call.arity(2)
    options = call.options("GatherOptions")
    axis = call.axis(options["axis"], call.rank(0))
    batch = options["batch_dims"]
    batch = call.axis(batch, call.rank(1)) if batch < 0 else batch
    _check_index_type(call, 1)
    if batch == 0:
        call.result(call.emit("Gather", call.input(0), call.input(1), axis=axis))
        return
    if axis != batch or batch > call.rank(1):
        raise call.refuse(f"axis={axis} with batch_dims={batch} is not supported; both must be the same")
    places = call.unsqueeze(call.long(1), [call.rank(1)])
    call.result(call.emit("GatherND", call.input(0), places, batch_dims=batch))


@handles("GATHER_ND")
def _gather_nd(call: Call) -> None:
    call.arity(2)
    call.no_options()
    call.result(call.emit("GatherND", call.input(0), call.long(1)))


@handles("EMBEDDING_LOOKUP")
def _embedding_lookup(call: Call) -> None:
    call.arity(2)
    call.no_options()
    _check_index_type(call, 0)
    call.result(call.emit("Gather", call.input(1), call.input(0), axis=0))


def _check_index_type(call: Call, position: int) -> None:
    if call.dtype(position) not in ("int32", "int64"):
        raise call.refuse(f"indices of type {call.dtype(position)} are not supported; int32 and int64 are")


@handles("ONE_HOT")
def _one_hot(call: Call) -> None:
    call.arity(4)
    rank = call.rank(0)
    axis = call.axis(call.options("OneHotOptions")["axis"], rank + 1)
    depth = call.integer(1, "the depth")
    _check_index_type(call, 0)
    if not 0 <= depth <= MOST_POSITIONS:
        raise call.refuse(f"the depth {depth} is outside 0 to {MOST_POSITIONS}")
    # ONNX's OneHot counts negative indices from the end; TFLite leaves their row off.
    around = [depth if place == axis else 1 for place in range(rank + 1)]
    codes = call.new(np.arange(depth).reshape(around), call.dtype(0), "codes")
    is_on = call.emit("Equal", call.unsqueeze(call.input(0), [axis]), codes)
    call.result(call.emit("Where", is_on, call.input(2), call.input(3)))


@handles("TOPK_V2")
def _top_k(call: Call) -> None:
    call.arity(2, outputs=2)
    call.no_options()
    k = call.reshape(call.long(1), [1])
    values = call.emit("TopK", call.input(0), k, outputs=2, axis=-1)
    call.result(values)
    call.result(call.cast(f"{values}:1", "int64", call.output_dtype(1)), 1)
