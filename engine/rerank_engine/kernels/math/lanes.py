"""The rare case of a vector: lanes for which the quick way does not hold are computed one by one, out of line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from rerank_engine.codegen.emitter import I32, Emitter, width_of


def any_lane(e: Emitter, condition: ir.Value) -> ir.Value:
    """One bit: true in at least one lane."""
    width = width_of(condition)
    if width == 1:
        return condition
    bits = e.b.bitcast(condition, ir.IntType(width))
    return e.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def scalar_function(
    e: Emitter, name: str, kind: ir.FunctionType, write: Callable[[Emitter, Sequence[ir.Value]], ir.Value]
) -> ir.Function:
    """A function of one lane, written at its first use in a module."""
    known = e.b.module.globals.get(name)
    if known is not None:
        return known
    function = ir.Function(e.b.module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    inside = Emitter(ir.IRBuilder(function.append_basic_block("entry")), 1)
    inside.b.ret(write(inside, function.args))
    return function


def replace_lanes(
    e: Emitter,
    needed: ir.Value,
    quick: Sequence[ir.Value],
    function: ir.Function,
    arguments: Sequence[ir.Value],
) -> list[ir.Value]:
    """Where ``needed``, replace the quick results by those of a scalar function.

    Parameters
    ----------
    needed
        One bit a lane. Nothing is called unless one is set.
    quick
        Results that hold in the other lanes.
    function
        Gives a structure of as many fields as there are quick results. It is called for every lane, so it must end
        for any arguments.
    arguments
        Of the function, a vector each.
    """
    b = e.b
    before = b.block
    with b.if_then(any_lane(e, needed), likely=False):
        width = width_of(needed)
        slow = [ir.Constant(value.type, ir.Undefined) for value in quick]
        for lane in range(width):
            place = ir.Constant(I32, lane)
            result = b.call(function, [b.extract_element(x, place) if width > 1 else x for x in arguments])
            for index, value in enumerate(slow):
                field = b.extract_value(result, index)
                slow[index] = b.insert_element(value, field, place) if width > 1 else field
        merged = [b.select(needed, careful, value) for careful, value in zip(slow, quick, strict=True)]
        inside = b.block
    results = []
    for careful, value in zip(merged, quick, strict=True):
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        phi.add_incoming(careful, inside)
        results.append(phi)
    return results
