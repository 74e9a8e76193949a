"""A sound source, and the kinds of sources that are files which we parse ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ONNX, ONNX_NODES, TFLITE = "onnx", "onnx-nodes", "tflite"
LIGHTGBM_TEXT, LIGHTGBM_JSON = "lightgbm-text", "lightgbm-json"
XGBOOST_JSON, XGBOOST_UBJ = "xgboost-json", "xgboost-ubj"
CAFFE_TEXT, CAFFE_BINARY = "caffe-text", "caffe-binary"

SHARES: Mapping[str, float] = {
    ONNX: 0.40,
    TFLITE: 0.15,
    CAFFE_TEXT: 0.09,
    CAFFE_BINARY: 0.08,
    LIGHTGBM_TEXT: 0.08,
    LIGHTGBM_JSON: 0.06,
    XGBOOST_JSON: 0.07,
    XGBOOST_UBJ: 0.07,
    ONNX_NODES: 0.40,
}
"""Every kind, and its share of the cases, relative to the others that are asked for."""

DEFAULT_KINDS = tuple(kind for kind in SHARES if kind != ONNX_NODES)
"""Kinds whose models are at hand at once."""

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Source:
    """A sound model.

    Attributes
    ----------
    kind
        A key of :data:`SHARES`.
    name
        For people.
    files
        Content by file name.
    main
        Name of the file that is converted.
    options
        Arguments of ``convert``; the value of ``weights`` is the name of a file.
    """

    kind: str
    name: str
    files: Files
    main: str
    options: Mapping[str, str] = field(default_factory=dict)
