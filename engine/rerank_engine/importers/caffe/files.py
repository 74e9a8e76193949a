"""Caffe's two files become a list of layers: text or binary, any age of the format, as the TEST phase sees them.

Caffe itself brings old forms up to date before it builds a network; the same steps are taken here, each in one
function, and what is too old is refused with the tool that upgrades it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.caffe.schema import PARAMETER_FIELDS, message_class
from rerank_engine.importers.protobuf_texts import check_texts

_LARGEST_TEXT_BYTES = 64 << 20
_LARGEST_BINARY_BYTES = (1 << 31) - 1
_MOST_LAYERS = 1 << 16

# Types of V1 layers that are not written as LAYER_TYPE in the later LayerType.
_V1_TYPES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "LRN": "LRN",
    "MVN": "MVN",
    "RELU": "ReLU",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "TANH": "TanH",
}


@dataclass(frozen=True)
class NetworkFile:
    """One file after it was read.

    Attributes
    ----------
    label
        How messages name the file.
    name
        The network's name, "" when it has none.
    layers
        ``LayerParameter`` messages in the order of the file.
    state
        The ``NetState`` that the file asks for.
    """

    label: str
    name: str
    layers: tuple[Any, ...]
    state: Any


def read_prototxt(source: str | Path | bytes) -> NetworkFile:
    """Read a network in text form.

    Parameters
    ----------
    source
        Path, or the text itself: ``bytes``, or a ``str`` with a ``{`` or a line break in it.

    Raises
    ------
    ConversionError
        The text cannot be read, is no network, or names a field that ``caffe.proto`` has not.
    """
    from google.protobuf import text_format

    if isinstance(source, str) and ("{" in source or "\n" in source):
        source = source.encode()
    label, content = _load(source, "prototxt", _LARGEST_TEXT_BYTES)
    network = message_class("NetParameter")()
    try:
        text_format.Parse(content.decode("utf-8"), network)
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{label}: this is not text ({error}); a binary model is given as the .caffemodel, not as the prototxt"
        ) from error
    except (text_format.ParseError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConversionError(f"{label}: no network in Caffe's text form: {error}") from error
    return _current(network, label)


def read_caffemodel(source: str | Path | bytes) -> NetworkFile:
    """Read a network in binary form: trained weights, and with them the network that was trained.

    Parameters
    ----------
    source
        Path, or the content as ``bytes``.

    Raises
    ------
    ConversionError
        The file cannot be read or is no network.
    """
    from google.protobuf.message import DecodeError

    label, content = _load(source, "caffemodel", _LARGEST_BINARY_BYTES)
    if content.startswith(b"\x89HDF\r\n"):
        raise ConversionError(
            f"{label}: this is an HDF5 snapshot; write the weights with snapshot_format: BINARYPROTO,"
            " or net.save('model.caffemodel') in pycaffe"
        )
    network = message_class("NetParameter")()
    try:
        network.ParseFromString(content)
    except (DecodeError, RecursionError, ValueError) as error:
        raise ConversionError(f"{label}: no network in Caffe's binary form: {error}") from error
    return _current(network, label)


def _load(source: str | Path | bytes, what: str, largest: int) -> tuple[str, bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        label, size = f"<{what}>", len(source)
        content = bytes(source) if size <= largest else b""
    elif isinstance(source, str | Path):
        path = Path(source)
        label = path.name or str(path)
        try:
            size = path.stat().st_size
            content = path.read_bytes() if size <= largest else b""
        except (OSError, ValueError) as error:
            raise ConversionError(f"cannot read the Caffe {what} {source}: {error}") from error
    else:
        raise ConversionError(f"expected a path or bytes as the Caffe {what}, got {type(source).__name__}")
    if size > largest:
        raise ConversionError(f"{label}: {size} bytes are more than the {largest} that a {what} may have")
    return label, content


def _current(network: Any, label: str) -> NetworkFile:
    """Bring a network to the current form of the format."""
    count = len(network.layer) + len(network.layers) + len(network.input)
    if count > _MOST_LAYERS:
        raise ConversionError(f"{label}: {count} layers are more than the {_MOST_LAYERS} that are read")
    check_texts(network, label, leave_out=("BlobProto", "BlobShape"))
    if network.layers and network.layer:
        raise ConversionError(f"{label}: it mixes 'layers' and 'layer'; write every layer as 'layer'")
    layers = [*_input_layers(network, label), *(_from_v1(entry, label) for entry in network.layers), *network.layer]
    if not layers:
        raise ConversionError(f"{label}: it holds no layers, so it is no Caffe network, or it is empty")
    return NetworkFile(label, network.name, tuple(layers), network.state)


def _input_layers(network: Any, label: str) -> list[Any]:
    """Inputs declared beside the layers, in the two old ways, as ``Input`` layers."""
    if not network.input:
        if network.input_dim or network.input_shape:
            raise ConversionError(f"{label}: input_dim or input_shape is given, but no input")
        return []
    if network.input_dim and network.input_shape:
        raise ConversionError(f"{label}: both input_dim and input_shape are given; keep input_shape")
    if network.input_shape:
        shapes = [list(shape.dim) for shape in network.input_shape]
    else:
        dims = list(network.input_dim)
        if len(dims) != 4 * len(network.input):
            raise ConversionError(
                f"{label}: {len(network.input)} inputs need {4 * len(network.input)} values of input_dim,"
                f" got {len(dims)}"
            )
        shapes = [dims[at : at + 4] for at in range(0, len(dims), 4)]
    if len(shapes) != len(network.input):
        raise ConversionError(f"{label}: {len(network.input)} inputs have {len(shapes)} values of input_shape")
    layers = []
    for blob, shape in zip(network.input, shapes, strict=True):
        layer = message_class("LayerParameter")(name=blob, type="Input", top=[blob])
        layer.input_param.shape.add(dim=shape)
        layers.append(layer)
    return layers


def _from_v1(old: Any, label: str) -> Any:
    """A layer of the form ``layers { type: RELU }`` in the current form."""
    name = old.name
    if old.HasField("layer"):
        raise UnsupportedOperatorError(
            f"{label}: layer {old.layer.name!r} is written in the oldest form (V0, layers {{ layer {{ … }} }});"
            " upgrade the files with Caffe's tools upgrade_net_proto_text and upgrade_net_proto_binary"
        )
    new = message_class("LayerParameter")(
        name=name, bottom=old.bottom, top=old.top, include=old.include, exclude=old.exclude, loss_weight=old.loss_weight
    )
    word = old.DESCRIPTOR.enum_types_by_name["LayerType"].values_by_number[old.type].name
    if word != "NONE":
        new.type = _V1_TYPES.get(word) or "".join(part.capitalize() for part in word.split("_"))
    new.blobs.extend(old.blobs)
    for index, shared in enumerate(old.param):
        spec = new.param.add(name=shared)
        if index < len(old.blob_share_mode):
            spec.share_mode = old.blob_share_mode[index]
    for field, value in old.ListFields():
        if field.name in PARAMETER_FIELDS:
            getattr(new, field.name).CopyFrom(value)
    return new


def in_test_phase(file: NetworkFile) -> list[Any]:
    """Layers that Caffe builds for inference: those whose ``include`` and ``exclude`` rules allow phase TEST.

    Raises
    ------
    ConversionError
        A layer has both kinds of rules, or the network asks for another level.
    """
    if file.state.level:
        raise ConversionError(
            f"{file.label}: state.level {file.state.level} is not supported; Caffe's loaders build level 0,"
            " so remove it and the layers of other levels"
        )
    stages = set(file.state.stage)
    kept = []
    for layer in file.layers:
        if layer.include and layer.exclude:
            raise ConversionError(f"{file.label}: layer {layer.name!r} has include and exclude rules; give one kind")
        if layer.include:
            keep = any(_meets(rule, stages) for rule in layer.include)
        else:
            keep = not any(_meets(rule, stages) for rule in layer.exclude)
        if keep:
            kept.append(layer)
    return kept


def _meets(rule: Any, stages: set[str]) -> bool:
    test = rule.DESCRIPTOR.fields_by_name["phase"].enum_type.values_by_name["TEST"].number
    return (
        (not rule.HasField("phase") or rule.phase == test)
        and (not rule.HasField("min_level") or rule.min_level <= 0)
        and (not rule.HasField("max_level") or rule.max_level >= 0)
        and stages.issuperset(rule.stage)
        and stages.isdisjoint(rule.not_stage)
    )
