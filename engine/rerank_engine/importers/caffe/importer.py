"""Caffe to ONNX: reads the two files, wires the layers, and hands each to its function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank_engine.errors import ConversionError, MissingExtraError, RerankError, UnsupportedOperatorError
from rerank_engine.importers.caffe.files import in_test_phase, read_caffemodel, read_prototxt
from rerank_engine.importers.caffe.layers import LAYERS, LayerType
from rerank_engine.importers.caffe.network import WiredLayer, wire
from rerank_engine.importers.caffe.weights import Weights
from rerank_engine.importers.caffe.writer import BATCH, Blob, LayerWriter, OnnxParts

if TYPE_CHECKING:
    import onnx

_OPSET, _IR_VERSION = 17, 8

# What every layer may have; it says how the layer is connected and trained.
_COMMON = frozenset(
    ("name", "type", "bottom", "top", "phase", "loss_weight", "param", "blobs", "propagate_down", "include", "exclude")
)


def caffe_to_onnx(prototxt: str | Path | bytes | None, caffemodel: str | Path | bytes | None = None) -> onnx.ModelProto:
    """Convert a Caffe network to ONNX (opset 17).

    Layers and blobs keep their names: a layer's last node is called like the layer, a value like its top. When a blob
    is rewritten in place, the last value has the blob's name, as in Caffe's ``net.blobs``; the ones before are called
    ``blob@layer``. The first dimension of every input becomes ``N``; the others keep their declared sizes. Inputs are
    float32, but for those that only ``Embed`` layers read: these hold ids and are int64.

    The network is the one that Caffe builds for phase TEST. Outputs are the blobs that no layer reads. Loss and
    accuracy layers are left out, so what they judge becomes an output; data layers are refused.

    Parameters
    ----------
    prototxt
        The network: path of a ``deploy.prototxt``, or its text (``bytes``, or a ``str`` with a brace or line break).
        None takes the network that the ``.caffemodel`` describes itself.
    caffemodel
        The weights: path of a ``.caffemodel``, or its content as ``bytes``. None when no layer has weights, or the
        prototxt holds them.

    Returns
    -------
    onnx.ModelProto
        Passes ``onnx.checker``; inputs ``(N, …)``.

    Raises
    ------
    UnsupportedOperatorError
        A layer type, or a parameter of one, is not understood; the message names file, layer and field.
    ConversionError
        A file cannot be read, the network contradicts itself, or the weights do not fit it.
    MissingExtraError
        ``onnx`` or ``protobuf`` is not installed.

    Notes
    -----
    Formats and layer definitions: BVLC Caffe, ``src/caffe/proto/caffe.proto`` and the layer catalogue
    (Jia et al., *Caffe: Convolutional Architecture for Fast Feature Embedding*, 2014).

    Examples
    --------
    >>> model = caffe_to_onnx('''
    ...     name: "small"
    ...     layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }
    ...     layer { name: "score" type: "Reduction" bottom: "x" top: "score" reduction_param { axis: 1 } }
    ... ''')
    >>> [node.op_type for node in model.graph.node], model.graph.output[0].name
    (['ReduceSum'], 'score')
    """
    try:
        import onnx  # noqa: F401  (checked here once, for a clear message)
        from google.protobuf import text_format  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("reading Caffe models", "convert") from error
    if prototxt is None and caffemodel is None:
        raise ConversionError("give a prototxt, a caffemodel, or both")
    trained = None if caffemodel is None else read_caffemodel(caffemodel)
    file = read_prototxt(prototxt) if prototxt is not None else trained
    assert file is not None
    layers = in_test_phase(file)
    network = wire(
        layers,
        file.label,
        never_in_place=[name for name, entry in LAYERS.items() if not entry.in_place],
        layout=[name for name, entry in LAYERS.items() if entry.layout],
    )
    weights = Weights(layers, file.label, trained)
    batch = network.inputs[0].dims[0] if network.inputs else 0
    parts = OnnxParts(file.label, network.names, batch)
    for entry in network.inputs:
        dtype = "int64" if entry.holds_ids else "float32"
        parts.blobs[entry.name] = Blob(entry.name, (BATCH, *entry.dims[1:]), dtype)
    for layer in network.layers:
        _convert_layer(parts, weights, layer)
    name = file.name or ("caffe" if file.label.startswith("<") else Path(file.label).stem)
    return _model(parts, name, [entry.name for entry in network.inputs], network.outputs)


def _convert_layer(parts: OnnxParts, weights: Weights, layer: WiredLayer) -> None:
    kind = LAYERS.get(layer.message.type)
    where = f"{parts.label}: layer {layer.message.name!r} ({layer.message.type})"
    if kind is None:
        raise UnsupportedOperatorError(
            f"{where}: this layer type is not supported; supported: Input, {', '.join(sorted(LAYERS))}"
        )
    _check_fields(layer.message, kind, where)
    for what, names, (least, most) in (("bottoms", layer.bottoms, kind.bottoms), ("tops", layer.tops, kind.tops)):
        if not least <= len(names) <= most:
            number = str(least) if least == most else f"{least} or more" if most > 2 else f"{least} to {most}"
            raise ConversionError(f"{where}: it takes {number} {what}, got {len(names)}")
    try:
        kind.convert(LayerWriter(parts, weights, layer, kind.parameter))
    except RerankError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConversionError(f"{where}: its parameters or bottoms do not fit each other: {error}") from error


def _check_fields(message: Any, kind: LayerType, where: str) -> None:
    """Refuse a parameter that is set and not understood."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for field, value in message.ListFields():
        if field.name in _COMMON:
            continue
        if field.name != kind.parameter:
            raise UnsupportedOperatorError(f"{where}: field {field.name!r} has no meaning for this layer; remove it")
        for entry, _ in value.ListFields():
            if entry.name not in kind.understood + kind.ignored:
                raise UnsupportedOperatorError(f"{where}: field {field.name}.{entry.name} is not understood")
    for holder in (message, *([getattr(message, kind.parameter)] if kind.parameter else [])):
        unknown = [entry.field_number for entry in UnknownFieldSet(holder)]
        if unknown:
            raise UnsupportedOperatorError(
                f"{where}: field number {unknown[0]} of {holder.DESCRIPTOR.name} is no field of BVLC Caffe; give a"
                " deploy.prototxt without it"
            )


def _model(parts: OnnxParts, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    def declared(blob: Blob) -> onnx.ValueInfoProto:
        kind = TensorProto.INT64 if blob.dtype == "int64" else TensorProto.FLOAT
        return helper.make_tensor_value_info(blob.name, kind, blob.dims)

    border = {*inputs, *outputs}
    inner = [blob for name, blob in parts.blobs.items() if name not in border]
    graph = helper.make_graph(
        parts.nodes,
        name,
        [declared(parts.blobs[entry]) for entry in inputs],
        [declared(parts.blobs[entry]) for entry in outputs],
        parts.constants,
        value_info=[declared(blob) for blob in inner],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="rerank-sdk",
        producer_version="caffe",
    )
