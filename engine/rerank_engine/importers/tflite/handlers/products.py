"""Matrix products."""

from __future__ import annotations

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles


@handles("FULLY_CONNECTED")
def _fully_connected(call: Call) -> None:
    call.arity(2, 3)
    options = call.options("FullyConnectedOptions")
    if options["weights_format"]:
        raise call.refuse("shuffled weights are not supported; convert the model without them")
    if call.rank(1) != 2 or min(call.shape(1)) < 0:
        raise call.refuse(f"weights of shape {list(call.shape(1))} are not supported; a fixed matrix is")
    if call.rank(0) < 1:
        raise call.refuse("its input is a scalar")
    units, width = call.shape(1)
    value = call.input(0)
    if options["keep_num_dims"] and call.rank(0) != 2:
        if call.shape(0)[-1] != width:
            raise call.refuse(f"an input of shape {list(call.shape(0))} does not fit weights of width {width}")
        value = call.emit("MatMul", value, call.transposed(1, [1, 0]))
        if call.has(2):
            value = call.emit("Add", value, _bias(call, units))
    else:
        if call.rank(0) != 2 or call.shape(0)[1] != width:
            value = call.reshape(value, [-1, width])
        inputs = [value, call.input(1), *([_bias(call, units)] if call.has(2) else [])]
        value = call.emit("Gemm", *inputs, transB=1)
    call.result(call.activate(value, options["fused_activation"]))


def _bias(call: Call, units: int) -> str:
    """Bias of one number a unit."""
    if call.shape(2) != (units,):
        raise call.refuse(f"a bias of shape {list(call.shape(2))} does not fit {units} units")
    return call.input(2)


@handles("BATCH_MATMUL")
def _batch_matmul(call: Call) -> None:
    call.arity(2)
    options = call.options("BatchMatMulOptions")
    sides = []
    for position, name in enumerate(("adj_x", "adj_y")):
        rank = call.rank(position)
        if rank < 2:
            raise call.refuse(f"input {position} has rank {rank}; expected 2 or more")
        order = [*range(rank - 2), rank - 1, rank - 2]
        sides.append(call.transposed(position, order) if options[name] else call.input(position))
    call.result(call.emit("MatMul", *sides))
