"""Arrays as kernels see them: an address, sizes and strides, each known now or when the code runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.codegen.emitter import ELEMENT_BYTES, ELEMENT_TYPES, Emitter, Index, widen, width_of


@dataclass(frozen=True)
class View:
    """An array in memory.

    Attributes
    ----------
    e
        Writes the instructions.
    address
        Of the first element.
    dtype
        Key of :data:`rerank_engine.graph.DTYPES`.
    sizes
        Elements per dimension.
    strides
        Elements from one index to the next, per dimension; 0 where the array is broadcast.
    """

    e: Emitter
    address: ir.Value
    dtype: str
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]

    @classmethod
    def contiguous(cls, e: Emitter, address: ir.Value, dtype: str, sizes: Sequence[Index]) -> View:
        """An array without gaps, the last dimension fastest."""
        return cls(e, address, dtype, tuple(sizes), row_strides(e, sizes))

    def at(self, indices: Sequence[Index]) -> ir.Value:
        """Address of one element."""
        offset: Index = 0
        for index, stride in zip(indices, self.strides, strict=True):
            offset = self.e.add(offset, self.e.mul(index, stride))
        return self.e.at(self.address, self.e.mul(offset, ELEMENT_BYTES[self.dtype]))

    def load(self, indices: Sequence[Index], width: int = 1) -> ir.Value:
        """Load elements that are neighbours along the last dimension; a bool is one bit."""
        return load_elements(self.e, self.at(indices), self.dtype, width)

    def store(self, value: ir.Value, indices: Sequence[Index]) -> None:
        """Store elements that are neighbours along the last dimension."""
        store_elements(self.e, value, self.at(indices), self.dtype)

    def broadcast(self, rank: int) -> View:
        """The array with dimensions of one in front, and a stride of 0 wherever its size is the constant 1."""
        front = rank - len(self.sizes)
        kept = tuple(0 if size == 1 else stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return View(self.e, self.address, self.dtype, (1,) * front + self.sizes, (0,) * front + kept)

    def permuted(self, order: Sequence[int]) -> View:
        """The array with its dimensions in another order."""
        sizes, strides = (tuple(entries[axis] for axis in order) for entries in (self.sizes, self.strides))
        return View(self.e, self.address, self.dtype, sizes, strides)


def row_strides(e: Emitter, sizes: Sequence[Index]) -> tuple[Index, ...]:
    """Strides in elements of an array without gaps."""
    strides: list[Index] = []
    step: Index = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step = e.mul(step, size)
    return tuple(strides)


def load_elements(e: Emitter, address: ir.Value, dtype: str, width: int) -> ir.Value:
    """Load ``width`` elements; a stored bool (one byte) becomes one bit."""
    value = e.load(address, ELEMENT_TYPES[dtype], width)
    return e.b.icmp_unsigned("!=", value, e.like(value, 0)) if dtype == "bool" else value


def store_elements(e: Emitter, value: ir.Value, address: ir.Value, dtype: str) -> None:
    """Store elements; one bit becomes a byte."""
    if dtype == "bool":
        value = e.b.zext(value, widen(ELEMENT_TYPES["bool"], width_of(value)))
    e.store(value, address)
