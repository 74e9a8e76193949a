r"""The file around the graph: a 128-byte header, then the sections GRAPH and WEIGHTS, all little endian.

======  =====  ==========================================================================================
offset  bytes  content
======  =====  ==========================================================================================
0       8      magic ``\x89RRM\r\n\x1a\n``; like PNG's it breaks when a transfer treats the file as text
8       4      format version: major (u16), minor (u16)
12      4      header size: 128
16      48     GRAPH: offset, size (u64 each), SHA-256; a FlatBuffers buffer, see ``model.fbs``
64      48     WEIGHTS: offset, size (u64 each), SHA-256; 64-byte aligned, as is every array in it
112     8      size of the whole file
120     4      reserved, zero
124     4      CRC-32 of the 124 bytes before
======  =====  ==========================================================================================

The identity of a model, its content hash, is the SHA-256 of the two sections' hashes, one after the other: between
the sections there are only zeros, so it stands for every byte behind the header.

Magic, version and header size keep their places in every version, and the header always ends in the CRC-32 of
what stands before it, so that a reader can tell a newer file from a damaged one.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

from rerank_engine.errors import ModelFileError
from rerank_engine.records import Record

MAGIC = b"\x89RRM\r\n\x1a\n"
MAJOR_VERSION = 2
MINOR_VERSION = 0
HEADER_SIZE = 128
ALIGNMENT = 64
"""Of the WEIGHTS section and of each array in it, in bytes: one cache line, one AVX-512 register."""

MAX_HEADER_SIZE = 4096
"""No version will have a larger header; it bounds what is read before the header is trusted."""

MAX_GRAPH_SIZE = 64 * 1024 * 1024
"""Largest GRAPH section in bytes. Arrays live in WEIGHTS, so only damage makes it larger."""

_PREFIX = struct.Struct("<8sHHI")
_BODY = struct.Struct("<QQ32sQQ32sQ4s")
_CHECKSUM = struct.Struct("<I")
_RESERVED = bytes(4)
_REMEDY = "it is damaged or was cut short: copy or save it again"


class Source(Record):
    """What is being read, for messages.

    Attributes
    ----------
    name
        Path of the file, or a description.
    remedy
        What the reader of a message about damage can do.
    """

    name: str
    remedy: str = _REMEDY

    def damaged(self, place: str, problem: str) -> ModelFileError:
        """Make the error for a broken rule at ``place``: a section, or a path into it."""
        return ModelFileError(f"{self.name}: {place}: {problem}; {self.remedy}")


class Header(Record):
    """The header's facts.

    Attributes
    ----------
    graph_offset, graph_size
        Bytes of the GRAPH section.
    graph_sha256
        32 bytes: SHA-256 of that section.
    weights_offset, weights_size
        Bytes of the WEIGHTS section.
    weights_sha256
        32 bytes: SHA-256 of that section.
    file_size
        Bytes of the whole file.
    minor_version
        Of the format, as written.
    """

    graph_offset: int
    graph_size: int
    graph_sha256: bytes
    weights_offset: int
    weights_size: int
    weights_sha256: bytes
    file_size: int
    minor_version: int = MINOR_VERSION

    @property
    def content_sha256(self) -> bytes:
        """The identity of the model: 32 bytes, which depend on every byte behind the header."""
        return hashlib.sha256(self.graph_sha256 + self.weights_sha256).digest()

    @property
    def is_newer(self) -> bool:
        """Whether a newer minor version wrote the file: it may hold unknown fields, all safe to ignore."""
        return self.minor_version > MINOR_VERSION


def aligned(offset: int) -> int:
    """Round up to the next multiple of :data:`ALIGNMENT`.

    >>> aligned(0), aligned(1), aligned(64)
    (0, 64, 64)
    """
    return -(-offset // ALIGNMENT) * ALIGNMENT


def layout(graph_size: int, weights_size: int, graph_sha256: bytes, weights_sha256: bytes) -> Header:
    """Place the sections: GRAPH behind the header, WEIGHTS at the next aligned byte, then the end.

    >>> layout(200, 1000, bytes(32), bytes(32)).weights_offset
    384
    """
    weights_offset = aligned(HEADER_SIZE + graph_size)
    return Header(
        graph_offset=HEADER_SIZE,
        graph_size=graph_size,
        graph_sha256=graph_sha256,
        weights_offset=weights_offset,
        weights_size=weights_size,
        weights_sha256=weights_sha256,
        file_size=weights_offset + weights_size,
    )


def pack_header(header: Header) -> bytes:
    """Write the 128 bytes.

    >>> len(pack_header(layout(200, 1000, bytes(32), bytes(32))))
    128
    """
    body = _PREFIX.pack(MAGIC, MAJOR_VERSION, header.minor_version, HEADER_SIZE) + _BODY.pack(
        header.graph_offset,
        header.graph_size,
        header.graph_sha256,
        header.weights_offset,
        header.weights_size,
        header.weights_sha256,
        header.file_size,
        _RESERVED,
    )
    return body + _CHECKSUM.pack(zlib.crc32(body))


def file_identity(header: Header) -> bytes:
    """What stands for a model file without being understood: the header's bytes and the file's size.

    >>> header = layout(200, 1000, bytes(32), bytes(32))
    >>> header_in(file_identity(header)) == header
    True
    """
    return pack_header(header) + header.file_size.to_bytes(8, "little")


def header_in(identity: bytes) -> Header:
    """The header in :func:`file_identity`."""
    size = int.from_bytes(identity[-8:], "little")
    return parse_header(identity[:-8], size, Source("identity of a model"))


def parse_header(start: bytes, actual_size: int, source: Source) -> Header:
    """Read and check a header.

    Parameters
    ----------
    start
        The file's first :data:`MAX_HEADER_SIZE` bytes, or all of a shorter file.
    actual_size
        Bytes that the file has.
    source
        For messages.

    Raises
    ------
    ModelFileError
        Not a model file, of another version, damaged, or of another length than it says.

    Examples
    --------
    >>> header = layout(200, 1000, bytes(32), bytes(32))
    >>> parse_header(pack_header(header), header.file_size, Source("din.rrm")) == header
    True
    """
    if start[: len(MAGIC)] != MAGIC:
        raise _not_ours(start, source)
    if len(start) < HEADER_SIZE:
        raise source.damaged(
            "header", f"{actual_size} bytes, but a model file has at least {HEADER_SIZE} bytes of header"
        )
    _, major, minor, header_size = _PREFIX.unpack_from(start)
    _check_crc(start, header_size, source)
    if major != MAJOR_VERSION:
        raise _other_version(major, minor, source)
    if header_size != HEADER_SIZE:
        raise source.damaged("header", f"header size {header_size}, expected {HEADER_SIZE}")
    *facts, reserved = _BODY.unpack_from(start, _PREFIX.size)
    if reserved != _RESERVED:
        raise source.damaged("header", "reserved bytes are not zero")
    header = Header(*(*facts, minor))
    _check_sections(header, actual_size, source)
    return header


def _not_ours(start: bytes, source: Source) -> ModelFileError:
    what = f"starts with {start[: len(MAGIC)]!r}" if start else "is empty"
    hint = ""
    if start[:8].replace(b"\r", b"").startswith(b"\x89RRM\n"):
        hint = " (line ends were changed: the file was copied in text mode, copy it in binary mode)"
    return ModelFileError(
        f"{source.name}: header: not a .rrm model file: it {what}, expected {MAGIC!r}{hint}; "
        "use rerank_engine.convert for other formats"
    )


def _check_crc(start: bytes, header_size: int, source: Source) -> None:
    if not HEADER_SIZE <= header_size <= MAX_HEADER_SIZE or header_size > len(start):
        raise source.damaged("header", f"header size {header_size}, expected {HEADER_SIZE}")
    end = header_size - _CHECKSUM.size
    (expected,) = _CHECKSUM.unpack_from(start, end)
    if (found := zlib.crc32(start[:end])) != expected:
        raise source.damaged("header", f"checksum {found:08x}, expected {expected:08x}")


def _other_version(major: int, minor: int, source: Source) -> ModelFileError:
    if major > MAJOR_VERSION:
        age, way_out = "newer", "update rerank-sdk, or save the model with this version of it"
    else:
        age, way_out = "older", "convert the source model again"
    return ModelFileError(
        f"{source.name}: header: format version {major}.{minor} is {age} than the {MAJOR_VERSION}.x "
        f"that this rerank-sdk reads; {way_out}"
    )


def _check_sections(header: Header, actual_size: int, source: Source) -> None:
    if header.file_size != actual_size:
        raise source.damaged("header", f"declares {header.file_size} bytes, the file has {actual_size}")
    if header.graph_size > MAX_GRAPH_SIZE:
        raise source.damaged(
            "header", f"section GRAPH has {header.graph_size} bytes, at most {MAX_GRAPH_SIZE} are allowed"
        )
    expected = layout(header.graph_size, header.weights_size, header.graph_sha256, header.weights_sha256)
    for name in ("graph_offset", "weights_offset", "file_size"):
        if getattr(header, name) != getattr(expected, name):
            raise source.damaged("header", f"{name} is {getattr(header, name)}, expected {getattr(expected, name)}")
