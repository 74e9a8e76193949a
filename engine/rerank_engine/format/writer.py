"""A graph becomes a ``.rrm`` file: the same graph always the same bytes, and never half a file on the disk.

Values are numbered inputs first, then as the nodes meet them in execution order, then the outputs, then the
rest by name; attributes and metadata are sorted. So the bytes depend on what the graph says and not on the
order in which its dictionaries were filled, and weights lie in the file in the order in which they are
read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from rerank_engine.errors import GraphError, ModelFileError
from rerank_engine.files import write_atomically
from rerank_engine.format.arrays import Placement, place, plain_bytes, stored_parts
from rerank_engine.format.decoder import decode_graph
from rerank_engine.format.encoder import encode_graph
from rerank_engine.format.layout import HEADER_SIZE, MAX_GRAPH_SIZE, Header, Source, layout, pack_header
from rerank_engine.format.sample import verify_sample
from rerank_engine.graph import Graph


class EncodedModel(NamedTuple):
    """A model file in parts, so that large weights need not be copied together.

    Attributes
    ----------
    header
        See :mod:`.layout`.
    parts
        The file's bytes in order: the header, the graph, then padding and views of the arrays.
    """

    header: Header
    parts: tuple[bytes | memoryview, ...]

    @property
    def content_hash(self) -> str:
        """Hex SHA-256, the identity of the model."""
        return self.header.content_sha256.hex()


def write_model(graph: Graph, path: str | os.PathLike[str]) -> str:
    """Write ``graph`` to ``path``, all or nothing.

    The bytes go to a new file in the same directory, reach the disk, and then take the place of ``path`` in
    one step: a reader, or a crash, meets the old file or the new one.

    Parameters
    ----------
    graph
        It is verified first.
    path
        By convention ``*.rrm``. An existing file is replaced.

    Returns
    -------
    str
        The content hash, which identifies the model.

    Raises
    ------
    GraphError
        The graph breaks a rule, or holds something that the format cannot keep. Nothing is written.
    ModelFileError
        The file cannot be written; an existing one is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> from rerank_engine.format import read_model
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = write_model(graph, f"{directory}/one.rrm")
    ...     read_model(f"{directory}/one.rrm").constants["w"].tolist()
    [1.0, 1.0, 1.0]
    """
    encoded = encode_model(graph)
    try:
        write_atomically(Path(path), encoded.parts)
    except (OSError, ValueError, TypeError) as error:
        raise ModelFileError(
            f"{path}: cannot write the model file: {error}; choose a writable path with "
            f"{sum(map(len, encoded.parts))} bytes of space"
        ) from error
    return encoded.content_hash


def model_bytes(graph: Graph) -> bytes:
    r"""Return what :func:`write_model` would write.

    Raises
    ------
    GraphError
        The graph breaks a rule, or holds something that the format cannot keep.

    Examples
    --------
    >>> import numpy as np
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> model_bytes(graph)[:4]
    b'\x89RRM'
    """
    return b"".join(encode_model(graph).parts)


def encode_model(graph: Graph) -> EncodedModel:
    """Verify and encode a graph.

    Raises
    ------
    GraphError
        The graph breaks a rule, or holds something that the format cannot keep.

    Examples
    --------
    >>> import numpy as np
    >>> graph = Graph("one", outputs=["w"])
    >>> _ = graph.add_constant("w", np.ones(3, np.float32))
    >>> len(encode_model(graph).content_hash)
    64
    """
    graph.verify()
    verify_sample(graph)
    names = _numbered(graph)
    constants = {name: graph.constants[name] for name in names if name in graph.constants}
    inputs, outputs = _sample_arrays(graph)
    placement = place(constants.items(), inputs.items(), outputs.items())
    arrays = [plain_bytes(*pair) for group in (constants, inputs, outputs) for pair in group.items()]
    section = encode_graph(graph, names, placement)
    _check_readable(graph, section, placement)

    weights = stored_parts(placement, arrays)
    digest = hashlib.sha256()
    for part in weights:
        digest.update(part)
    header = layout(len(section), placement.byte_size, hashlib.sha256(section).digest(), digest.digest())
    padding = bytes(header.weights_offset - HEADER_SIZE - len(section))
    return EncodedModel(header, (pack_header(header), section, padding, *weights))


def _numbered(graph: Graph) -> list[str]:
    order = dict.fromkeys(graph.inputs)
    for node in graph.nodes:
        order.update(dict.fromkeys(node.inputs))
        order.update(dict.fromkeys(node.outputs))
    order.update(dict.fromkeys(graph.outputs))
    for name in (*order, *graph.values):
        if not isinstance(name, str):
            raise GraphError(f"value name {name!r} is {type(name).__name__}, expected str")
    order.update(dict.fromkeys(sorted(graph.values)))
    return list(order)


def _sample_arrays(graph: Graph) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]]:
    """Inputs and outputs of the sample in the order of the graph's."""
    if graph.sample is None:
        return {}, {}
    inputs, outputs = graph.sample.inputs, graph.sample.outputs
    return {name: inputs[name] for name in graph.inputs}, {name: outputs[name] for name in graph.outputs}


def _check_readable(graph: Graph, section: bytes, placement: Placement) -> None:
    source = Source(f"graph {graph.name!r} cannot be stored", remedy="change the graph and save it again")
    if len(section) > MAX_GRAPH_SIZE:
        raise GraphError(
            f"{source.name}: it needs {len(section)} bytes without its constants, at most {MAX_GRAPH_SIZE} "
            "are allowed; keep large attributes and metadata as constants"
        )
    try:
        decode_graph(section, placement.byte_size, source)
    except ModelFileError as error:
        raise GraphError(str(error)) from None
