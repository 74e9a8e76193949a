"""TFLite files to ONNX, by a reader and a translation of our own.

Three ways were weighed:

- *tf2onnx* reads TFLite files, but imports TensorFlow to do so: 1.3 GB for a file of some kilobytes.
- The *tflite* package holds generated accessors (last release January 2025). They follow every offset in the file
  unchecked, so a damaged file makes them read anywhere, and they would still leave the translation to be written.
- The part of the schema that rankers need is a table of some hundred numbers that never change, and a checked reader
  of FlatBuffers is 150 lines. That is what is here: no dependency beyond ``onnx``, and no file can make it read
  outside its bytes.

Quantised files keep their meaning (real value = (stored - zero point) * scale): constants become float32, and values
between operators pass through QuantizeLinear and DequantizeLinear. The interpreter computes such operators with whole
numbers; its results may differ by about one step of the output's scale. Files with quantised weights and float
values ("dynamic range") are computed in float32, without the rounding of the inputs that the interpreter adds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rerank_engine.errors import ConversionError, MissingExtraError
from rerank_engine.importers.tflite.reader import Signature, TfliteModel, read_tflite

if TYPE_CHECKING:
    import onnx

__all__ = ["tflite_to_onnx"]

_INPUT_PREFIX = "serving_default_"


def tflite_to_onnx(
    source: str | Path | bytes,
    *,
    candidates: str = "N",
    signature: str | None = None,
    dimensions: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Translate a TFLite model.

    Inputs and outputs have the names of the file's signature, or without one the names of its tensors. The first
    dimension of an input, where it varies, counts candidates unless ``dimensions`` says otherwise.

    Parameters
    ----------
    source
        Path of a ``.tflite`` file, or its bytes.
    candidates
        Name of the dimension that counts candidates.
    signature
        Key of the signature to read, needed when the file has several.
    dimensions
        Input name to the name of its first dimension, for inputs whose varying first dimension does not count
        candidates, such as the steps of a history.

    Returns
    -------
    onnx.ModelProto
        Checked by ONNX, with the shapes that the file declares.

    Raises
    ------
    UnsupportedOperatorError
        The model uses an operator, option, type or form that is not understood; the message names it.
    ConversionError
        The file is unreadable, damaged or inconsistent.
    MissingExtraError
        ``onnx`` is not installed.

    Examples
    --------
    >>> tflite_to_onnx(b"")
    Traceback (most recent call last):
    rerank_engine.errors.ConversionError: not a TFLite model: it does not carry the mark 'TFL3'
    """
    name, data = _read(source)
    try:
        import onnx  # noqa: F401  (checked here once, for a clear message)
    except ImportError as error:
        raise MissingExtraError("reading TFLite models", "convert") from error
    try:
        model = read_tflite(data)
        return _translate(model, name, candidates, signature, dimensions or {})
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError, struct.error) as error:
        # The reader checks what it follows; what a damaged file can still break shows here.
        raise ConversionError(f"the file is damaged: {error}") from error


def _read(source: str | Path | bytes) -> tuple[str, bytes]:
    if isinstance(source, bytes):
        return "model", source
    if not isinstance(source, str | Path):
        raise ConversionError(f"expected a path or bytes, got {type(source).__name__}")
    try:
        return Path(source).stem, Path(source).read_bytes()
    except OSError as error:
        raise ConversionError(f"cannot read {source}: {error}") from error


def _translate(
    model: TfliteModel, name: str, candidates: str, key: str | None, dimensions: Mapping[str, str]
) -> onnx.ModelProto:
    from rerank_engine.importers.tflite.scope import translate_graph

    entry = _pick(model, key)
    graph = model.subgraphs[entry.subgraph]
    if sorted(entry.inputs.values()) != sorted(graph.inputs) or not set(entry.outputs.values()) <= set(graph.outputs):
        raise ConversionError(f"signature {entry.key!r} does not name the inputs and outputs of its graph")
    if not entry.outputs:
        raise ConversionError("the model has no outputs")
    unknown = set(dimensions) - set(entry.inputs)
    if unknown:
        raise ConversionError(f"no input is called {min(unknown)!r}; inputs: {', '.join(sorted(entry.inputs))}")
    names = {number: input_name for input_name, number in entry.inputs.items()}
    # ONNX has one name space; a signature has one for inputs and one for outputs.
    outputs = [
        (number, f"{output}_output" if output in entry.inputs else output) for output, number in entry.outputs.items()
    ]
    if len({output for _, output in outputs}) < len(outputs):
        raise ConversionError("two outputs have the same name")
    known = {input_name: dimensions.get(input_name, candidates) for input_name in entry.inputs}
    ordered = {number: names[number] for number in graph.inputs}
    return translate_graph(model, entry.subgraph, name, ordered, outputs, known)


def _pick(model: TfliteModel, key: str | None) -> Signature:
    """Signature that is asked for, or one made of the names of the first graph's tensors."""
    keys = [entry.key for entry in model.signatures]
    if key is not None:
        for entry in model.signatures:
            if entry.key == key:
                return entry
        raise ConversionError(f"no signature is called {key!r}; signatures: {', '.join(keys) or 'none'}")
    if len(keys) > 1:
        raise ConversionError(f"the file has several signatures ({', '.join(keys)}); say which one: signature=…")
    if keys:
        return model.signatures[0]
    from types import MappingProxyType

    graph = model.subgraphs[0]

    def named(numbers: tuple[int, ...], kind: str) -> MappingProxyType[str, int]:
        found: dict[str, int] = {}
        for place, number in enumerate(numbers):
            name = graph.tensors[number].name.removeprefix(_INPUT_PREFIX).removesuffix(":0") or f"{kind}_{place}"
            if name in found:
                raise ConversionError(f"two tensors at the border of the graph are called {name!r}")
            found[name] = number
        return MappingProxyType(found)

    return Signature("", named(graph.inputs, "input"), named(graph.outputs, "output"), 0)
