"""Ways to corrupt a source: its raw bytes, or its structure as its kind has one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

import onnx
from model_fuzzing.mutate import damaged  # type: ignore[import-not-found]

from rerank_engine.importers.caffe.layers import LAYERS
from rerank_engine.importers.caffe.schema import message_class
from rerank_engine.importers.trees.ubjson import parse_ubjson

from . import json_tree, onnx_models, protobuf, texts, tflite
from .source import (
    CAFFE_BINARY,
    CAFFE_TEXT,
    LIGHTGBM_JSON,
    LIGHTGBM_TEXT,
    ONNX,
    ONNX_NODES,
    TFLITE,
    XGBOOST_JSON,
    XGBOOST_UBJ,
    Files,
    Source,
)

Way = Callable[[bytes, Random], bytes]
"""Content of a file and a source of randomness to other content."""

_CAFFE_TEXTS = ("x", "fc", "a", "data", "Data", "Silence", "Accuracy", "Input", *sorted(LAYERS))


def raw(content: bytes, random: Random) -> bytes:
    """Damage as disks and networks do it."""
    return bytes(damaged(content, random))


def json_structure(content: bytes, random: Random) -> bytes:
    """Other types, keys and numbers in well-formed JSON."""
    return json_tree.to_json(json_tree.changed(_parsed_json(content), random), random)


def ubjson_structure(content: bytes, random: Random) -> bytes:
    """Other types, keys and numbers in well-formed UBJSON."""
    document = json_tree.changed(_parsed_ubjson(content), random)
    return json_tree.to_ubjson(json_tree.lists_as_arrays(document, random), random)


def lines(content: bytes, random: Random) -> bytes:
    """Lines and numbers of a LightGBM text."""
    return texts.changed_lines(content.decode(), random).encode("utf-8", "surrogatepass")


def words(content: bytes, random: Random) -> bytes:
    """Words of a prototxt."""
    return texts.changed_words(content.decode(), random).encode()


def text_fields(content: bytes, random: Random) -> bytes:
    """Fields of a prototxt that is well-formed."""
    from google.protobuf import text_format

    network = text_format.Parse(content, message_class("NetParameter")())
    protobuf.change(network, random, _CAFFE_TEXTS)
    return str(text_format.MessageToString(network)).encode("utf-8", "surrogatepass")


def binary_fields(content: bytes, random: Random) -> bytes:
    """Fields of a caffemodel that is well-formed."""
    network = message_class("NetParameter").FromString(content)
    protobuf.change(network, random, _CAFFE_TEXTS)
    return bytes(network.SerializeToString())


def flatbuffer_fields(content: bytes, random: Random) -> bytes:
    """Fields of a TFLite file that is well-formed."""
    tree = tflite.copied(_exploded(content))
    tflite.change(tree, random)
    return tflite.assemble(tree)


def onnx_fields(content: bytes, random: Random) -> bytes:
    """Fields of an ONNX file that is well-formed."""
    model = onnx.ModelProto.FromString(content)
    protobuf.change(model, random, (*onnx_models.TEXTS, *(name for node in model.graph.node for name in node.output)))
    return bytes(model.SerializeToString())


def onnx_meaning(content: bytes, random: Random) -> bytes:
    """An ONNX model that is wrong as a whole."""
    model = onnx.ModelProto.FromString(content)
    onnx_models.change(model, random)
    return bytes(model.SerializeToString())


def onnx_within_rules(content: bytes, random: Random) -> bytes:
    """An ONNX model that keeps to ONNX's rules, and is another one."""
    model = onnx.ModelProto.FromString(content)
    onnx_models.change_within_rules(model, random)
    return bytes(model.SerializeToString())


@lru_cache(maxsize=64)
def _parsed_json(content: bytes) -> Any:
    return json.loads(content)


@lru_cache(maxsize=64)
def _parsed_ubjson(content: bytes) -> Any:
    return json_tree.arrays_as_lists(parse_ubjson(content))


@lru_cache(maxsize=256)
def _exploded(content: bytes) -> tflite.Tree:
    return tflite.explode(content)


_ONNX_WAYS: Mapping[str, tuple[float, str, Way]] = {
    "raw": (0.08, ".onnx", raw),
    "structure": (0.22, ".onnx", onnx_fields),
    "meaning": (0.3, ".onnx", onnx_meaning),
    "within rules": (0.4, ".onnx", onnx_within_rules),
}

WAYS: Mapping[str, Mapping[str, tuple[float, str, Way]]] = {
    ONNX: _ONNX_WAYS,
    ONNX_NODES: _ONNX_WAYS,
    LIGHTGBM_TEXT: {"raw": (0.3, "", raw), "lines": (0.7, "", lines)},
    LIGHTGBM_JSON: {"raw": (0.2, "", raw), "structure": (0.8, "", json_structure)},
    XGBOOST_JSON: {"raw": (0.2, "", raw), "structure": (0.8, "", json_structure)},
    XGBOOST_UBJ: {"raw": (0.4, "", raw), "structure": (0.6, "", ubjson_structure)},
    TFLITE: {"raw": (0.35, "", raw), "structure": (0.65, "", flatbuffer_fields)},
    CAFFE_BINARY: {"raw": (0.25, "", raw), "structure": (0.75, "", binary_fields)},
    CAFFE_TEXT: {
        "raw": (0.1, ".prototxt", raw),
        "words": (0.35, ".prototxt", words),
        "structure": (0.35, ".prototxt", text_fields),
        "raw weights": (0.05, ".caffemodel", raw),
        "weights": (0.15, ".caffemodel", binary_fields),
    },
}
"""By kind: ways by name, each with its share, how the name of its file ends, and what it does."""


def mutate(source: Source, random: Random) -> tuple[str, Files]:
    """Corrupt one file of a source in a way drawn by ``random``; returns the way's name and the files."""
    ways = WAYS[source.kind]
    (name,) = random.choices(list(ways), [share for share, _, _ in ways.values()])
    _, suffix, way = ways[name]
    file = random.choice([file for file in source.files if file.endswith(suffix)])
    content = source.files[file]
    while content == source.files[file]:
        content = way(source.files[file], random)
    return name, {**source.files, file: content}
