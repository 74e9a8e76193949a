"""The way from Python into machine code without an interpreter in between: a function that CPython can call.

    PyObject *rerank_python_call(PyObject *self, PyObject *const *arguments, Py_ssize_t count)

It takes a context (an int64 array of addresses, see :class:`Layout`) and the dictionary of inputs, checks every array's
type, dtype, order and shape, notes the sizes of the named dimensions in the arena, and calls the model without the
interpreter lock. Arrays are read where they lie. It returns the status of the model, or ``NOT_TAKEN`` for whatever is
not the plain case (another dtype, a list that does not fit, a missing input); the caller then goes the general way,
which converts and explains.

It reads the fields that NumPy's C interface publishes (``PyArrayObject_fields``, unchanged from NumPy 1.0 to 2.x) and
calls functions of CPython's stable interface through the context. :mod:`rerank_engine.native_call` checks at run time
that the fields lie where they are expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from rerank_engine.arena import PADDING, SIZES_OFFSET
from rerank_engine.codegen.emitter import ELEMENT_BYTES, I32, I64, POINTER, Emitter, Index, i64
from rerank_engine.codegen.target import Target
from rerank_engine.graph import CANDIDATES
from rerank_engine.interface import interface_of
from rerank_engine.kernels.copy import copy_row
from rerank_engine.native_call import (
    ARRAY_FIELDS,
    FUNCTIONS,
    HEADER_BYTES,
    NOT_TAKEN,
    PYTHON_CALL,
    REQUIRED_FLAGS,
    Layout,
)
from rerank_engine.plan import Plan

_SMALLEST_PAGE = 4096

_SIGNATURES: dict[str, tuple[ir.Type, list[ir.Type]]] = {
    "PyDict_Size": (I64, [POINTER]),
    "PyDict_GetItemWithError": (POINTER, [POINTER, POINTER]),
    "PyErr_Clear": (ir.VoidType(), []),
    "Py_IncRef": (ir.VoidType(), [POINTER]),
    "Py_DecRef": (ir.VoidType(), [POINTER]),
    "PyEval_SaveThread": (POINTER, []),
    "PyEval_RestoreThread": (ir.VoidType(), [POINTER]),
    "PyLong_FromLong": (POINTER, [I64]),  # A C long has 32 bits on Windows; what is passed fits.
}


@dataclass
class _Checked:
    """An input that fits.

    Attributes
    ----------
    array
        The object.
    data
        Address of its first element.
    elements
        How many it has.
    """

    array: ir.Value
    data: ir.Value
    elements: Index


def can_be_called_directly(plan: Plan) -> bool:
    """Tell whether every input dimension is a number or some times a name, and no size can become negative."""
    graph = plan.graph
    dims = [dim for name in graph.inputs for dim in graph.values[name].shape]
    return all(isinstance(dim, int) or dim.multiple for dim in dims) and not interface_of(graph).shrinking


def emit_python_call(module: ir.Module, entry: ir.Function, plan: Plan, target: Target) -> None:
    """Add the function to a module that has the model's entry function."""
    kind = ir.FunctionType(POINTER, [POINTER, POINTER, I64])
    function = ir.Function(module, kind, PYTHON_CALL)
    if target.calling_convention:
        function.calling_convention = target.calling_convention
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")), target.lanes)
    call = _Call(e, plan, target, function)
    call.emit(entry)


class _Function:
    """An address as something to call: llvmlite asks it for its type, which an address has not of itself."""

    def __init__(self, address: ir.Value, function_type: ir.FunctionType) -> None:
        self.type = address.type
        self.function_type = function_type
        self.get_reference = address.get_reference


class _Call:
    def __init__(self, e: Emitter, plan: Plan, target: Target, function: ir.Function) -> None:
        self.e = e
        self.plan = plan
        self.convention = target.calling_convention
        self.layout = Layout(len(plan.graph.inputs), len(plan.names))
        arguments = function.args[1]
        context = e.b.load(arguments, align=8, typ=POINTER)
        self.context = e.b.load(e.at(context, HEADER_BYTES), align=8, typ=POINTER)
        self.inputs = e.b.load(e.at(arguments, 8), align=8, typ=POINTER)
        self.otherwise = function.append_basic_block("not_taken")

    def emit(self, entry: ir.Function) -> None:
        e, b = self.e, self.e.b
        graph = self.plan.graph
        arena = self.word(self.layout.arena, POINTER)
        self.check(b.icmp_signed("==", self.python("PyDict_Size", self.inputs), i64(len(graph.inputs))))
        sizes: dict[str, ir.Value] = {}
        checked = [self.input(index, name, sizes) for index, name in enumerate(graph.inputs)]
        for index, name in enumerate(self.plan.names):
            self.check(b.icmp_signed("<=", sizes[name], self.word(self.layout.limits + index, I64)))
            b.store(sizes[name], e.at(arena, SIZES_OFFSET + 8 * index), align=8)
        table = b.alloca(POINTER, len(checked))
        for index, (name, one) in enumerate(zip(graph.inputs, checked, strict=True)):
            address = self.readable(index, one, graph.values[name].dtype)
            b.store(address, e.at(table, 8 * index), align=8)
            self.python("Py_IncRef", one.array)
        thread = self.python("PyEval_SaveThread")
        arguments = [
            self.word(self.layout.weights, POINTER),
            arena,
            table,
            self.word(self.layout.outputs, POINTER),
            sizes.get(CANDIDATES, i64(0)),
        ]
        status = b.call(entry, arguments, cconv=self.convention or None)
        self.python("PyEval_RestoreThread", thread)
        for one in checked:
            self.python("Py_DecRef", one.array)
        b.ret(self.python("PyLong_FromLong", b.sext(status, I64)))
        b.position_at_end(self.otherwise)
        self.python("PyErr_Clear")
        b.ret(self.python("PyLong_FromLong", i64(NOT_TAKEN)))

    def word(self, index: int, kind: ir.Type) -> ir.Value:
        return self.e.b.load(self.e.at(self.context, 8 * index), align=8, typ=kind)

    def python(self, name: str, *arguments: ir.Value) -> ir.Value:
        """Call a function of the interpreter."""
        result, parameters = _SIGNATURES[name]
        address = self.word(self.layout.functions + FUNCTIONS.index(name), POINTER)
        function = _Function(address, ir.FunctionType(result, parameters))
        return self.e.b.call(function, list(arguments), cconv=self.convention or None)

    def check(self, condition: ir.Value) -> None:
        """Go on if the condition holds."""
        b = self.e.b
        following = b.append_basic_block("fits")
        b.cbranch(condition, following, self.otherwise)
        b.position_at_end(following)

    def field(self, array: ir.Value, name: str, kind: ir.Type) -> ir.Value:
        offset = HEADER_BYTES + ARRAY_FIELDS[name]
        return self.e.b.load(self.e.at(array, offset), align=4 if kind == I32 else 8, typ=kind)

    def input(self, index: int, name: str, sizes: dict[str, ir.Value]) -> _Checked:
        """Check one input, and bind the sizes of dimensions that it names first."""
        e, b = self.e, self.e.b
        value = self.plan.graph.values[name]
        array = self.python("PyDict_GetItemWithError", self.inputs, self.word(self.layout.name(index), POINTER))
        self.check(b.icmp_unsigned("!=", array, ir.Constant(POINTER, None)))
        kind = b.load(e.at(array, HEADER_BYTES - 8), align=8, typ=POINTER)
        self.check(b.icmp_unsigned("==", kind, self.word(self.layout.array_type, POINTER)))
        flags = b.and_(self.field(array, "flags", I32), ir.Constant(I32, REQUIRED_FLAGS))
        fits = b.icmp_signed("==", flags, ir.Constant(I32, REQUIRED_FLAGS))
        rank = ir.Constant(I32, len(value.shape))
        fits = b.and_(fits, b.icmp_signed("==", self.field(array, "nd", I32), rank))
        descriptor = self.word(self.layout.descriptor(index), POINTER)
        fits = b.and_(fits, b.icmp_unsigned("==", self.field(array, "descr", POINTER), descriptor))
        self.check(fits)
        shape = self.field(array, "dimensions", POINTER)
        elements: Index = 1
        for axis, dim in enumerate(value.shape):
            have = b.load(e.at(shape, 8 * axis), align=8, typ=I64)
            if isinstance(dim, int):
                self.check(b.icmp_signed("==", have, i64(dim)))
                elements = e.mul(elements, dim)
                continue
            assert dim.multiple is not None
            named, factor = dim.multiple
            if named not in sizes:
                sizes[named] = have if factor == 1 else b.sdiv(have, i64(factor))
            self.check(b.icmp_signed("==", have, e.value(e.mul(sizes[named], factor))))
            elements = e.mul(elements, have)
        return _Checked(array, self.field(array, "data", POINTER), elements)

    def readable(self, index: int, one: _Checked, dtype: str) -> ir.Value:
        """Address to read the input at. Whole vectors may be read past its end, if that lies on the same page."""
        e, b = self.e, self.e.b
        size = e.value(e.mul(one.elements, ELEMENT_BYTES[dtype]))
        last = b.add(b.ptrtoint(one.data, I64), b.sub(size, i64(1)))
        on_page = b.and_(last, i64(_SMALLEST_PAGE - 1))
        near_end = b.icmp_unsigned(">=", on_page, i64(_SMALLEST_PAGE - PADDING))
        buffer = self.word(self.layout.buffer(index), POINTER)
        copied = b.or_(near_end, b.icmp_signed("==", size, i64(0)))
        with b.if_then(copied, likely=False):
            copy_row(e, one.data, buffer, e.value(one.elements), dtype)
        return b.select(copied, buffer, one.data)
