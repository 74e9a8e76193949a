"""Peer engines, each in its cheapest normal form of a call from Python, on one thread.

Runs in an environment that has NumPy and the peer alone: everything else is imported where it is needed. The
benchmark's worker takes from here what :data:`ENGINES` maps a name to: ``(path, inputs)`` to a function
from named arrays to scores. ``inputs`` is one example, which gives the names in order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Call = Callable[[Arrays], Any]


def onnxruntime(path: str, _: Arrays) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [session.get_outputs()[0].name]
    run = session.run
    return lambda arrays: run(names, arrays)[0]


def openvino(path: str, _: Arrays) -> Call:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    infer, output = request.infer, request.get_output_tensor

    def call(arrays: Arrays) -> Any:
        infer(arrays, share_inputs=True, share_outputs=True)
        return output(0).data

    return call


def litert(path: str, inputs: Arrays) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    details = sorted(interpreter.get_input_details(), key=lambda one: _position(one["name"]))
    places = [(name, one["index"], one["dtype"]) for name, one in zip(inputs, details, strict=True)]
    set_tensor, invoke, get_tensor = interpreter.set_tensor, interpreter.invoke, interpreter.get_tensor
    output = interpreter.get_output_details()[0]["index"]
    if all(inputs[name].dtype == dtype for name, _, dtype in places):
        pairs = [(name, index) for name, index, _ in places]

        def call(arrays: Arrays) -> Any:
            for name, index in pairs:
                set_tensor(index, arrays[name])
            invoke()
            return get_tensor(output)

        return call

    def call_converting(arrays: Arrays) -> Any:
        for name, index, dtype in places:
            set_tensor(index, arrays[name].astype(dtype, copy=False))
        invoke()
        return get_tensor(output)

    return call_converting


def _position(name: str) -> int:
    """Place of an argument in a converted signature, ``serving_default_args_3:0``."""
    return int(name.rpartition("args_")[2].partition(":")[0])


def mnn(path: str, inputs: Arrays) -> Call:
    import MNN.expr as expr
    import MNN.nn as nn

    settings = ({"backend": "CPU", "numThread": 1, "precision": "high"},)
    module = nn.load_module_from_file(
        path, list(inputs), ["score"], runtime_manager=nn.create_runtime_manager(settings), shape_mutable=True
    )
    # It reads whole numbers as int32 only. Placeholders are made once and written for each call.
    slots = []
    for name, array in inputs.items():
        is_whole = array.dtype.kind == "i"
        slot = expr.placeholder(list(array.shape), expr.NCHW, expr.int if is_whole else expr.float)
        slots.append((name, slot, np.int32 if is_whole else np.float32))
    variables = [slot for _, slot, _ in slots]
    forward = module.forward

    def call(arrays: Arrays) -> Any:
        for name, slot, dtype in slots:
            slot.write(arrays[name].astype(dtype, copy=False))
        return forward(variables)[0].read()

    return call


def ncnn(path: str, inputs: Arrays) -> Call:
    import ncnn as library

    net = library.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = False
    for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, name, False)
    if net.load_param(path) or net.load_model(str(Path(path).with_suffix(".bin"))):
        raise RuntimeError("ncnn does not load the file")
    names = [(name, f"in{place}") for place, name in enumerate(inputs)]
    matrix, extractor = library.Mat, net.create_extractor

    def call(arrays: Arrays) -> Any:
        run = extractor()
        kept = []  # it does not copy: the array must live until the answer is there
        for name, blob in names:
            array = arrays[name]
            kept.append(array if array.dtype.kind != "i" else array.astype(np.int32))
            run.input(blob, matrix(kept[-1]))
        status, result = run.extract("out0")
        if status:
            raise RuntimeError(f"ncnn: status {status}")
        return np.array(result)

    call.net = net  # type: ignore[attr-defined]  # must outlive the extractors
    return call


def torchscript(path: str, inputs: Arrays) -> Call:
    import torch

    torch.set_num_threads(1)
    module = torch.jit.freeze(torch.jit.load(path).eval())
    names = list(inputs)
    from_numpy, inference_mode = torch.from_numpy, torch.inference_mode

    def call(arrays: Arrays) -> Any:
        with inference_mode():
            return module(*[from_numpy(arrays[name]) for name in names]).numpy()

    return call


def lightgbm(path: str, inputs: Arrays) -> Call:
    import lightgbm as library

    predict = library.Booster(model_file=path).predict
    (name,) = inputs
    return lambda arrays: predict(arrays[name], num_threads=1)


def lleaves(path: str, inputs: Arrays) -> Call:
    import lleaves as library

    model = library.Model(path)
    model.compile(cache=str(Path(path).with_suffix(".o")))
    predict = model.predict
    (name,) = inputs
    return lambda arrays: predict(arrays[name], n_jobs=1)


ENGINES: dict[str, Callable[[str, Arrays], Call]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "litert": litert,
    "mnn": mnn,
    "ncnn": ncnn,
    "torchscript": torchscript,
    "lightgbm": lightgbm,
    "lleaves": lleaves,
}

LIBRARIES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai_edge_litert.interpreter",
    "mnn": "MNN.nn",
    "ncnn": "ncnn",
    "torchscript": "torch",
    "lightgbm": "lightgbm",
    "lleaves": "lleaves",
}
"""What importing an engine means, to be timed by itself."""

if __name__ == "__main__":
    sys.exit("this file is read by the benchmark's worker")
