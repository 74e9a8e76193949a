"""Read a ``.rrm`` file: map it, check everything, and hand out a graph whose constants are views of the map.

The checks, in order: magic, checksum of the header, version, lengths, SHA-256 of each section, the structure
of the GRAPH section (:mod:`.verifier`), its meaning (:mod:`.decoder`), the graph's own rules, and those of the
stored sample. No memory is taken for a size that the file merely states: arrays are views of what is there. A file
that passes cannot make a later stage read outside of it. The map stays valid while the file is not changed
in place, which :func:`~rerank_engine.format.write_model` never does.
"""

from __future__ import annotations

import hashlib
from typing import Any

from numpy.typing import NDArray

from rerank_engine.errors import GraphError
from rerank_engine.format.arrays import aligned_copy, view_arrays
from rerank_engine.format.content import ModelSource, header_of, open_content
from rerank_engine.format.decoder import DecodedGraph, decode_graph
from rerank_engine.format.layout import Header, Source
from rerank_engine.format.sample import verify_sample
from rerank_engine.graph import Graph, Sample


def read_model(source: ModelSource, *, verify_hash: bool = True) -> Graph:
    r"""Read a model file.

    Parameters
    ----------
    source
        A path, which is memory-mapped, or the bytes of a file, which are copied.
    verify_hash
        Check the SHA-256 of both sections. Without it the file must still be well-formed, but changed weights
        go unnoticed; only for files whose hash was checked before.

    Returns
    -------
    Graph
        Its constants and sample are read-only and 64-byte aligned; with a path they are views that keep the map alive.

    Raises
    ------
    ModelFileError
        No such file, not a model file, of another version, or damaged; names the file, the section and the
        problem.

    Examples
    --------
    >>> import numpy as np
    >>> from rerank_engine.format import model_bytes
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(2, np.float32))
    >>> read_model(model_bytes(graph)).constants["w"]
    array([1., 1.], dtype=float32)
    >>> read_model(b"PK\x03\x04")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rerank_engine.errors.ModelFileError: <bytes>: header: not a .rrm model file: it starts with b'PK...
    """
    content = open_content(source)
    header = header_of(content)
    buffer = content.buffer
    _check_content(buffer, header, content.source, verify_hash=verify_hash)
    # A copy: a map may change under its reader, and what was verified must be what is read.
    section = bytes(buffer[header.graph_offset : header.graph_offset + header.graph_size])
    decoded = decode_graph(section, header.weights_size, content.source, unknown_fields=header.is_newer)
    weights = buffer[header.weights_offset :]
    if not content.mapped:
        weights = aligned_copy(weights)
    graph = _complete(decoded, view_arrays(weights, decoded.placement, content.source))
    try:
        graph.verify()
        verify_sample(graph)
    except GraphError as error:
        raise content.source.damaged("section GRAPH", str(error)) from None
    return graph


def _check_content(buffer: memoryview, header: Header, source: Source, *, verify_hash: bool) -> None:
    if any(buffer[header.graph_offset + header.graph_size : header.weights_offset]):
        raise source.damaged("padding after section GRAPH", "bytes are not zero")
    if verify_hash:
        graph_end, weights_end = header.graph_offset + header.graph_size, header.weights_offset + header.weights_size
        _check_hash(buffer[header.graph_offset : graph_end], header.graph_sha256, "section GRAPH", source)
        _check_hash(buffer[header.weights_offset : weights_end], header.weights_sha256, "section WEIGHTS", source)


def _check_hash(section: memoryview, stated: bytes, place: str, source: Source) -> None:
    found = hashlib.sha256(section)
    if found.digest() != stated:
        raise source.damaged(place, f"SHA-256 is {found.hexdigest()}, the header states {stated.hex()}")


def _complete(decoded: DecodedGraph, arrays: list[NDArray[Any]]) -> Graph:
    """Put the arrays into the graph."""
    graph, placement = decoded.graph, decoded.placement
    waiting = iter(arrays)
    constants, inputs, outputs = (
        {extent.name: next(waiting) for extent in group}
        for group in (placement.constants, placement.sample_inputs, placement.sample_outputs)
    )
    graph.constants = constants
    if decoded.tolerance is not None:
        graph.sample = Sample(inputs, outputs, decoded.tolerance)
    return graph
