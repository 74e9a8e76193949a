"""The content of a ``.rrm`` file, before anything in it is read: the map, the header, the identity."""

from __future__ import annotations

import mmap
import os
import stat

from rerank_engine.errors import ModelFileError
from rerank_engine.format.layout import MAX_HEADER_SIZE, Header, Source, parse_header
from rerank_engine.records import Record

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, or the content of a model file."""


def content_hash(source: ModelSource) -> str:
    """Return the content hash that a model file states: hex SHA-256, the identity of the model.

    Only the header is read and checked; :func:`~rerank_engine.format.read_model` checks that the sections have its
    hashes.

    Raises
    ------
    ModelFileError
        No such file, not a model file, of another version, damaged header, or cut short.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.format import model_bytes
    >>> from rerank_engine.graph import Graph
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> len(content_hash(model_bytes(graph)))
    64
    """
    return read_header(source).content_sha256.hex()


def read_header(source: ModelSource) -> Header:
    """The header of a model file; the errors are those of :func:`content_hash`."""
    return header_of(open_content(source))


class Content(Record):
    """Bytes to read, and what to call them."""

    buffer: memoryview
    source: Source
    mapped: bool


def open_content(source: ModelSource) -> Content:
    """Map a file, or copy bytes.

    Raises
    ------
    ModelFileError
        There is no such regular file, or it cannot be read.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return Content(memoryview(bytes(source)), Source("<bytes>"), mapped=False)
    try:
        path = os.fspath(source)
        # Before opening: a named pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 -- pathlib is slow to import
            raise ModelFileError(f"{path}: not a regular file; give the path of a .rrm model file")
        with open(path, "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_size == 0:
                return Content(memoryview(b""), Source(path), mapped=False)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return Content(memoryview(mapped), Source(path), mapped=True)
    except (OSError, ValueError, TypeError) as error:
        raise ModelFileError(
            f"{source!r}: cannot read a model file: {error}; give the path of a readable .rrm file"
        ) from error


def header_of(content: Content) -> Header:
    """The header, checked.

    Raises
    ------
    ModelFileError
        It is damaged, of another version, or states other lengths.
    """
    return parse_header(bytes(content.buffer[:MAX_HEADER_SIZE]), len(content.buffer), content.source)
