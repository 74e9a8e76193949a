"""A user's patch: what is added to the weights and bias of the last layer."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import ModelFileError

_MAGIC = b"RRPATCH2"
_HEADER = struct.Struct("<8s32sIf")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class Patch:
    """A delta of the last layer, bound to the model that it was trained on.

    Attributes
    ----------
    base_model
        Content hash (hex) of the model.
    weight
        (H,) float32, added to the last layer's weights.
    bias
        Added to its bias.

    Examples
    --------
    >>> patch = Patch("00" * 32, np.array([1, 0], np.float32), 0.5)
    >>> patch.delta(np.array([[2, 3]], np.float32)).tolist()
    [2.5]
    >>> Patch.from_bytes(patch.to_bytes()).bias
    0.5
    """

    base_model: str
    weight: NDArray[np.float32]
    bias: float

    def delta(self, head_input: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the patch adds to the scores of (N, H) head inputs: (N,) float32."""
        result: NDArray[np.float32] = head_input @ self.weight + np.float32(self.bias)
        return result

    def to_bytes(self) -> bytes:
        """Serialise, with a checksum at the end; a few hundred bytes."""
        header = _HEADER.pack(_MAGIC, bytes.fromhex(self.base_model), len(self.weight), self.bias)
        content = header + self.weight.astype("<f4").tobytes()
        return content + _CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def from_bytes(cls, content: bytes) -> Patch:
        """Read a serialised patch.

        Raises
        ------
        ModelFileError
            It is damaged or no patch.
        """
        if len(content) < _HEADER.size + _CHECKSUM.size:
            raise ModelFileError(f"patch is truncated: {len(content)} bytes: personalise the user again")
        magic, base_model, count, bias = _HEADER.unpack_from(content)
        body, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
        if magic != _MAGIC or len(body) != _HEADER.size + 4 * count or checksum != _CHECKSUM.pack(zlib.crc32(body)):
            raise ModelFileError("patch is damaged or of another version: personalise the user again")
        weight = np.frombuffer(content, "<f4", count, _HEADER.size).astype(np.float32)
        if not np.isfinite(weight).all() or not np.isfinite(bias):
            raise ModelFileError("patch holds numbers that are not finite: personalise the user again")
        return cls(base_model.hex(), weight, bias)
