"""Steps between real and quantised values. The builder does the work for every operator; here are the bare ones."""

from __future__ import annotations

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles


@handles("QUANTIZE", "DEQUANTIZE")
def _pass_on(call: Call) -> None:
    call.arity(1)
    call.no_options()
    if call.dtype(0) != "float32":
        raise call.refuse(f"type {call.dtype(0)} without a scale is not supported")
    # A value has its real form when it is read, and its stored form when it is filed.
    call.result(call.emit("Identity", call.input(0)))
