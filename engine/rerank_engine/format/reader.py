"""Read a ``.rrm`` file: map it, check everything, and hand out a graph whose constants are views of the map.

The checks, in order: magic, checksum of the header, version, lengths, SHA-256 of the content, the structure
of the GRAPH section (:mod:`.verifier`), its meaning (:mod:`.decoder`), and the graph's own rules. A file
that passes cannot make a later stage read outside of it. The map stays valid while the file is not changed
in place, which :func:`~rerank_engine.format.write_model` never does.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.format.decoder import Extent, decode_graph
from rerank_engine.format.layout import (
    ALIGNMENT,
    HEADER_SIZE,
    MAX_HEADER_SIZE,
    Header,
    Source,
    parse_header,
)
from rerank_engine.graph import DTYPES, Graph, Value

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, or the content of a model file."""


def read_model(source: ModelSource, *, verify_hash: bool = True) -> Graph:
    r"""Read a model file.

    Parameters
    ----------
    source
        A path, which is memory-mapped, or the bytes of a file, which are copied.
    verify_hash
        Check the SHA-256 of the content. Without it the file must still be well-formed, but changed weights
        go unnoticed; only for files whose hash was checked before.

    Returns
    -------
    Graph
        Its constants are read-only and 64-byte aligned; with a path they are views that keep the map alive.

    Raises
    ------
    ModelFileError
        No such file, not a model file, of another version, or damaged; names the file, the section and the
        problem.

    Examples
    --------
    >>> from rerank_engine.format import model_bytes
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(2, np.float32))
    >>> read_model(model_bytes(graph)).constants["w"]
    array([1., 1.], dtype=float32)
    >>> read_model(b"PK\x03\x04")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rerank_engine.errors.ModelFileError: <bytes>: header: not a .rrm model file: it starts with b'PK...
    """
    content = _open(source)
    header = _header(content)
    buffer = content.buffer
    _check_content(buffer, header, content.source, verify_hash=verify_hash)
    # A copy: a map may change under its reader, and what was verified must be what is read.
    section = bytes(buffer[header.graph_offset : header.graph_offset + header.graph_size])
    decoded = decode_graph(section, header.weights_size, content.source, unknown_fields=header.is_newer)
    weights = buffer[header.weights_offset :]
    if not content.mapped:
        weights = _aligned_copy(weights)
    graph = decoded.graph
    for extent in decoded.extents:
        value = graph.values[extent.name]
        graph.constants[extent.name] = _view(weights, extent, value, content.source)
    try:
        graph.verify()
    except GraphError as error:
        raise content.source.damaged("section GRAPH", str(error)) from None
    return graph


def content_hash(source: ModelSource) -> str:
    """Return the content hash that a model file states: hex SHA-256, the identity of the model.

    Only the header is read and checked; :func:`read_model` checks that the content has this hash.

    Raises
    ------
    ModelFileError
        No such file, not a model file, of another version, damaged header, or cut short.

    Examples
    --------
    >>> from rerank_engine.format import model_bytes
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> len(content_hash(model_bytes(graph)))
    64
    """
    return _header(_open(source)).content_sha256.hex()


class _Content(NamedTuple):
    """Bytes to read, and what to call them."""

    buffer: memoryview
    source: Source
    mapped: bool


def _open(source: ModelSource) -> _Content:
    if isinstance(source, bytes | bytearray | memoryview):
        return _Content(memoryview(bytes(source)), Source("<bytes>"), mapped=False)
    try:
        path = Path(source)
        # Before opening: a named pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelFileError(f"{path}: not a regular file; give the path of a .rrm model file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return _Content(memoryview(b""), Source(str(path)), mapped=False)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return _Content(memoryview(mapped), Source(str(path)), mapped=True)
    except (OSError, ValueError, TypeError) as error:
        raise ModelFileError(
            f"{source!r}: cannot read a model file: {error}; give the path of a readable .rrm file"
        ) from error


def _header(content: _Content) -> Header:
    return parse_header(bytes(content.buffer[:MAX_HEADER_SIZE]), len(content.buffer), content.source)


def _check_content(buffer: memoryview, header: Header, source: Source, *, verify_hash: bool) -> None:
    if any(buffer[header.graph_offset + header.graph_size : header.weights_offset]):
        raise source.damaged("padding after section GRAPH", "bytes are not zero")
    if verify_hash:
        digest = hashlib.sha256(buffer[HEADER_SIZE:]).digest()
        if digest != header.content_sha256:
            raise source.damaged(
                "content", f"SHA-256 is {digest.hex()}, the header states {header.content_sha256.hex()}"
            )


def _aligned_copy(data: memoryview) -> memoryview:
    room = np.empty(data.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + data.nbytes]
    copy[:] = np.frombuffer(data, np.uint8)
    return copy.data.toreadonly()


def _view(weights: memoryview, extent: Extent, value: Value, source: Source) -> NDArray[Any]:
    shape = tuple(dim for dim in value.shape if isinstance(dim, int))
    if extent.byte_size == 0:
        # A view of no bytes would need a place even where the section is empty.
        array = np.empty(shape, DTYPES[value.dtype])
        array.flags.writeable = False
        return array
    array = np.ndarray(shape, DTYPES[value.dtype], buffer=weights, offset=extent.byte_offset)
    if value.dtype == "bool" and array.view(np.uint8).max() > 1:
        raise source.damaged("section WEIGHTS", f"bool constant {value.name!r} holds bytes other than 0 and 1")
    return array
