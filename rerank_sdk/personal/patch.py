"""A user's patch: what is added to the weights and bias of the last layer."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rerank_engine.errors import ModelFileError

_MAGIC = b"RRPATCH1"
_HEADER = struct.Struct("<8s32sIf")


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
        """Serialise; a few hundred bytes."""
        header = _HEADER.pack(_MAGIC, bytes.fromhex(self.base_model), len(self.weight), self.bias)
        return header + self.weight.astype("<f4").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Patch:
        """Read a serialised patch.

        Raises
        ------
        ModelFileError
            It is damaged or no patch.
        """
        if len(content) < _HEADER.size:
            raise ModelFileError(f"patch is truncated: {len(content)} bytes")
        magic, base_model, count, bias = _HEADER.unpack_from(content)
        if magic != _MAGIC or len(content) != _HEADER.size + 4 * count:
            raise ModelFileError("patch is damaged or of another version: personalise the user again")
        weight = np.frombuffer(content, "<f4", count, _HEADER.size).astype(np.float32)
        if not np.isfinite(weight).all() or not np.isfinite(bias):
            raise ModelFileError("patch holds numbers that are not finite: personalise the user again")
        return cls(base_model.hex(), weight, bias)
