"""If, Loop and Scan decided while importing, functions of the model, and operators that ONNX defines as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from rerank_engine import convert
from rerank_engine.errors import ConversionError, UnsupportedOperatorError
from rerank_engine.importers.onnx_handlers.control_flow import MOST_NODES, MOST_ROUNDS

Array = NDArray[Any]
Check = Callable[..., Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, kind: int = FLOAT, shape: Sequence[Any] | None = ("N", 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    constants: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    fixed = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs), fixed)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = body(nodes, outputs, inputs, constants)
    graph.name = "g"
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in {f.domain for f in functions})]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


@pytest.fixture
def check(tools: Any) -> Check:
    """Compare a model with ONNX Runtime at several N; inputs are float32 of declared shapes."""

    def compare(model: onnx.ModelProto, counts: Sequence[int] = (1, 7, 140)) -> Any:
        graph = convert(model).graph
        compiled = tools.Compiled(graph)
        unnamed = onnx.ModelProto()
        unnamed.CopyFrom(model)
        for one in unnamed.graph.node:
            one.name = ""  # ONNX Runtime refuses two nodes of one name; exporters write them.
        for count in counts:
            random = np.random.default_rng(count)
            feeds = {}
            for entry in model.graph.input:
                shape = [
                    dim.dim_value if dim.HasField("dim_value") else count for dim in entry.type.tensor_type.shape.dim
                ]
                feeds[entry.name] = random.normal(0, 1, shape).astype(np.float32)
            expected = tools.run_onnxruntime(unnamed, feeds)
            found = compiled(feeds)
            assert list(found) == list(expected)
            for name, array in found.items():
                assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape), name
                np.testing.assert_allclose(array, expected[name], rtol=3e-6, atol=3e-6, err_msg=f"{name} at N={count}")
        return graph

    return compare


X = info("x")
Y = info("y", shape=("N", None))


# --- If ----------------------------------------------------------------------------------------------------


def branches(**extra: Any) -> dict[str, onnx.GraphProto]:
    """Both read ``x`` from outside, and have a name and a constant of their own in common."""
    plus = body(
        [node("Add", ["x", "c"], ["t"]), node("Relu", ["t"], ["out"])], [info("out")], constants={"c": np.float32(0.5)}
    )
    minus = body(
        [node("Sub", ["x", "c"], ["t"]), node("Neg", ["t"], ["out"])], [info("out")], constants={"c": np.float32(2)}
    )
    return {"then_branch": plus, "else_branch": minus, **extra}


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_constant_condition(check: Check, taken: bool, shape: tuple[int, ...]) -> None:
    nodes = [node("If", ["q"], ["y"], **branches())]
    graph = check(model_of(nodes, [X], [Y], {"q": np.full(shape, taken)}))
    assert {one.op for one in graph.nodes} - {"Identity"} <= ({"Add", "Relu"} if taken else {"Sub", "Neg"})
    assert graph.outputs == ["y"]


def test_conditions_that_follow_from_shapes_and_constants(check: Check) -> None:
    """The rank, a fixed size, a comparison of constants, logic over them."""
    conditions: list[list[onnx.NodeProto]] = [
        [node("Shape", ["x"], ["s"]), node("Size", ["s"], ["r"]), node("Equal", ["r", "two"], ["q"])],
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["w"]), node("Greater", ["w", "two"], ["q"])],
        [node("Less", ["two", "one"], ["a"]), node("Not", ["a"], ["b"]), node("And", ["a", "b"], ["q"])],
        [node("Cast", ["two"], ["q"], to=BOOL)],
        [node("Constant", [], ["q"], value=numpy_helper.from_array(np.array(False)))],
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("GreaterOrEqual", ["n", "zero"], ["q"]),
        ],
    ]
    constants = {name: np.array(number, np.int64) for number, name in enumerate(("zero", "one", "two"))}
    for nodes in conditions:
        check(model_of([*nodes, node("If", ["q"], ["y"], **branches())], [X], [Y], constants))


def test_several_results_and_one_that_nobody_wants(check: Check) -> None:
    yes = body([node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["b"])], [info("a"), info("b")])
    no = body([node("Abs", ["x"], ["a"]), node("Neg", ["x"], ["b"])], [info("a"), info("b")])
    one = node("If", ["q"], ["first", "second"], then_branch=yes, else_branch=no)
    nodes = [one, node("Add", ["first", "second"], ["y"])]
    check(model_of(nodes, [X], [Y, info("first", shape=("N", None))], {"q": np.array(False)}))


def test_a_branch_that_gives_back_what_it_found_outside(check: Check) -> None:
    """Inputs and results of outer nodes under the name of the result, more than once."""
    outer = node("Neg", ["x"], ["n"])
    for source in ("x", "n"):
        side = body([node("Identity", [source], ["out"])], [info("out", shape=None)])
        nodes = [
            outer,
            node("If", ["q"], ["y"], then_branch=side, else_branch=side),
            node("If", ["q"], ["z"], then_branch=side, else_branch=side),
            node("Add", ["y", "z"], ["s"]),
        ]
        outputs = [info(name, shape=(None, None)) for name in ("y", "n", "z", "s")]
        graph = check(model_of(nodes, [X], outputs, {"q": np.array(True)}))
        assert graph.outputs == ["y", "n", "z", "s"]


def test_a_branch_that_gives_a_weight(tools: Any) -> None:
    side = body([node("Identity", ["w"], ["out"])], [info("out", shape=None)])
    nodes = [node("If", ["q"], ["y"], then_branch=side, else_branch=side), node("Add", ["x", "y"], ["z"])]
    outputs = [info("y", shape=(3,)), info("z", shape=(None, None))]
    weight = np.array([1, 2, 3], np.float32)
    model = model_of(nodes, [X], outputs, {"q": np.array(True), "w": weight})
    found = tools.Compiled(convert(model).graph)({"x": np.ones((2, 3), np.float32)})
    assert list(found) == ["y", "z"]
    np.testing.assert_array_equal(found["y"], weight)
    np.testing.assert_array_equal(found["z"], [weight + 1] * 2)


def test_branches_in_branches(check: Check) -> None:
    """Values of every outer level are seen, and a name of an inner level hides an outer one."""
    inner = body(
        [node("Mul", ["t", "x"], ["u"]), node("Add", ["u", "outer"], ["t2"])],
        [info("t2")],
    )
    other = body([node("Neg", ["t"], ["t2"])], [info("t2")])
    middle = body(
        [
            node("Tanh", ["x"], ["t"]),
            node("If", ["p"], ["deep"], then_branch=inner, else_branch=other),
            node("If", ["q"], ["deep2"], then_branch=other, else_branch=inner),
            node("Sub", ["deep", "deep2"], ["out"]),
        ],
        [info("out")],
    )
    last = body([node("Abs", ["x"], ["out"])], [info("out")])
    nodes = [node("Sin", ["x"], ["outer"]), node("If", ["q"], ["y"], then_branch=middle, else_branch=last)]
    for p in (True, False):
        check(model_of(nodes, [X], [Y], {"q": np.array(True), "p": np.array(p)}))


def test_one_branch_taken_twice_makes_values_of_its_own(check: Check) -> None:
    nodes = [
        node("If", ["q"], ["a"], name="same", **branches()),
        node("If", ["q"], ["b"], name="same", **branches()),
        node("Mul", ["a", "b"], ["y"]),
    ]
    check(model_of(nodes, [X], [Y], {"q": np.array(True)}))


def test_a_condition_of_the_run_is_refused_by_name() -> None:
    model = model_of([node("If", ["q"], ["y"], name="gate", **branches())], [X, info("q", BOOL, ())], [Y])
    with pytest.raises(UnsupportedOperatorError, match="If node 'gate': the condition must be known"):
        convert(model)
    assert convert(model, constants={"q": np.array(True)}).graph.outputs == ["y"]
    model = model_of([node("If", ["q"], ["y"], name="gate", **branches())], [X], [Y], {"q": np.array([True, False])})
    with pytest.raises(UnsupportedOperatorError, match="If node 'gate': the condition must be known"):
        convert(model)


# --- Loop --------------------------------------------------------------------------------------------------


def round_of(*, going: str = "going", extra: Sequence[onnx.NodeProto] = (), scans: Sequence[str] = ("kept",)) -> Any:
    """One round: half the state plus ``outer``; keeps the state and its number."""
    nodes = [
        node("Mul", ["state", "half"], ["h"]),
        node("Add", ["h", "outer"], ["next"]),
        node("Tanh", ["next"], ["kept"]),
        node("Identity", ["i"], ["number"]),
        *extra,
        node("Identity", [going], ["stay"]),
    ]
    outputs = [info("stay", BOOL, ()), info("next")]
    outputs += [info(name, INT64, ()) if name == "number" else info(name) for name in scans]
    inputs = [info("i", INT64, ()), info("going", BOOL, ()), info("state")]
    return body(nodes, outputs, inputs, {"half": np.float32(0.5)})


def looped(rounds: Any, going: Any, one: onnx.GraphProto, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
    constants = {"m": np.array(rounds, np.int64)} if rounds is not None else {}
    constants |= {"g": np.array(going)} if going is not None else {}
    inputs = ["m" if rounds is not None else "", "g" if going is not None else "", "x"]
    nodes = [node("Sin", ["x"], ["outer"]), node("Loop", inputs, [entry.name for entry in outputs], name="l", body=one)]
    return model_of(nodes, [X], outputs, constants)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("going", [None, True])
def test_a_fixed_number_of_rounds(check: Check, rounds: int, going: bool | None) -> None:
    outputs = [Y, info("kept_all", shape=(None,) * 3), info("numbers", INT64, (None,))]
    check(looped(rounds, going, round_of(scans=("kept", "number")), outputs))


def test_a_weight_of_the_body_is_kept_once() -> None:
    graph = convert(looped(9, None, round_of(scans=()), [Y]), skip_passes=["common_subexpressions"]).graph
    assert sum(array.size == 1 and array.reshape(-1)[0] == 0.5 for array in graph.constants.values()) == 1


def test_no_round_gives_back_what_came(check: Check) -> None:
    check(looped(0, True, round_of(scans=()), [Y]))
    check(looped(3, False, round_of(scans=()), [Y]))


@pytest.mark.parametrize(("rounds", "going"), [(0, True), (5, False)])
def test_no_round_has_nothing_to_stack(rounds: int, going: bool) -> None:
    model = looped(rounds, going, round_of(), [Y, info("all", shape=(None,) * 3)])
    with pytest.raises(UnsupportedOperatorError, match="Loop node 'l': a loop of no rounds has no result to stack"):
        convert(model)


@pytest.mark.parametrize("rounds", [None, 10])
def test_a_condition_that_becomes_false(check: Check, rounds: int | None) -> None:
    """Two of the rounds at most: it is asked after each."""
    extra = [
        node("Constant", [], ["last"], value=numpy_helper.from_array(np.array(2, np.int64))),
        node("Less", ["i", "last"], ["on"]),
    ]
    graph = check(
        looped(rounds, True, round_of(going="on", extra=extra), [Y, info("all", shape=(None,) * 3)]), counts=(1, 7)
    )
    assert graph.values["all"].shape[0] == 3


def test_rounds_that_branch_by_their_number(check: Check) -> None:
    even = body([node("Relu", ["next"], ["b"])], [info("b")])
    odd = body([node("Neg", ["next"], ["b"])], [info("b")])
    extra = [
        node("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, np.int64))),
        node("Mod", ["i", "two"], ["odd"]),
        node("Cast", ["odd"], ["is_odd"], to=BOOL),
        node("If", ["is_odd"], ["branched"], then_branch=odd, else_branch=even),
    ]
    check(looped(4, None, round_of(extra=extra, scans=("branched",)), [Y, info("all", shape=(None,) * 3)]))


def test_loops_in_loops(check: Check) -> None:
    inner = body(
        [node("Add", ["s", "state"], ["s2"]), node("Identity", ["g"], ["g2"])],
        [info("g2", BOOL, ()), info("s2")],
        [info("j", INT64, ()), info("g", BOOL, ()), info("s")],
    )
    extra = [
        node("Constant", [], ["times"], value=numpy_helper.from_array(np.array(2, np.int64))),
        node("Loop", ["times", "", "next"], ["deep"], body=inner),
    ]
    check(looped(3, True, round_of(extra=extra, scans=("deep",)), [Y, info("all", shape=(None,) * 3)]))


def test_states_that_change_places(check: Check) -> None:
    """Two states swap every round; one of them is also what a scan keeps."""
    one = body(
        [node("Identity", ["g"], ["g2"]), node("Neg", ["a"], ["c"])],
        [info("g2", BOOL, ()), info("b"), info("a"), info("c")],
        [info("i", INT64, ()), info("g", BOOL, ()), info("a"), info("b")],
    )
    outputs = [Y, info("z", shape=(None, None)), info("all", shape=(None,) * 3)]
    nodes = [node("Sin", ["x"], ["s"]), node("Loop", ["m", "", "x", "s"], ["y", "z", "all"], body=one)]
    for rounds in (1, 2, 3):
        check(model_of(nodes, [X], outputs, {"m": np.array(rounds, np.int64)}))


def test_loops_that_cannot_be_written_out() -> None:
    late = looped(None, True, round_of(scans=()), [Y])
    with pytest.raises(UnsupportedOperatorError, match=rf"Loop node 'l': more than {MOST_ROUNDS} rounds"):
        convert(late)
    with pytest.raises(
        UnsupportedOperatorError, match=rf"Loop node 'l': {MOST_ROUNDS + 1} rounds of 5 nodes are too many"
    ):
        convert(looped(MOST_ROUNDS + 1, None, round_of(scans=()), [Y]))
    with pytest.raises(UnsupportedOperatorError, match="too many; at most"):
        convert(looped(2**62, None, round_of(scans=()), [Y]))
    many = round_of(
        extra=[node("Neg", ["next"], [f"n{index}"]) for index in range(MOST_NODES // MOST_ROUNDS + 1)], scans=()
    )
    with pytest.raises(UnsupportedOperatorError, match=f"at most {MOST_ROUNDS} and {MOST_NODES}"):
        convert(looped(MOST_ROUNDS, None, many, [Y]))


def test_what_a_loop_must_know() -> None:
    data = node("Loop", ["m", "", "x"], ["y"], name="l", body=round_of(scans=()))
    first = node("Sin", ["x"], ["outer"])
    with pytest.raises(UnsupportedOperatorError, match="Loop node 'l': the number of rounds must be known"):
        convert(model_of([first, data], [X, info("m", INT64, ())], [Y]))
    asking = round_of(
        going="on", extra=[node("ReduceMax", ["x"], ["a"], keepdims=0), node("Greater", ["a", "half"], ["on"])]
    )
    with pytest.raises(UnsupportedOperatorError, match="Loop node 'l': whether the loop goes on must be known"):
        convert(looped(3, None, asking, [Y, info("all", shape=(None,) * 3)]))


# --- Scan --------------------------------------------------------------------------------------------------


def scanned(axis: int = 0, backwards: int = 0, out_axis: int = 0, out_backwards: int = 0) -> onnx.ModelProto:
    """A running mix of two sequences, along an axis of known length, into two states and two results."""
    shape: list[Any] = ["N", 3]
    shape.insert(axis, 5)
    one = body(
        [
            node("Add", ["a", "p"], ["a1"]),
            node("Tanh", ["a1"], ["a2"]),
            node("Mul", ["b", "q"], ["b1"]),
            node("Sub", ["b1", "outer"], ["b2"]),
            node("Neg", ["a2"], ["r"]),
            node("Abs", ["b2"], ["s"]),
        ],
        [info(name) for name in ("a2", "b2", "r", "s")],
        [info(name) for name in ("a", "b", "p", "q")],
    )
    names = ["last_a", "last_b", "rs", "ss"]
    scan = node(
        "Scan", ["x", "x", "u", "v"], names, name="s", body=one, num_scan_inputs=2,
        scan_input_axes=[axis, axis], scan_input_directions=[backwards, 1 - backwards],
        scan_output_axes=[out_axis, out_axis], scan_output_directions=[out_backwards, 1 - out_backwards],
    )  # fmt: skip
    outputs = [info(name, shape=(None,) * (3 if name in ("rs", "ss") else 2)) for name in names]
    return model_of([node("Cos", ["x"], ["outer"]), scan], [X, info("u", shape=shape), info("v", shape=shape)], outputs)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(check: Check, axis: int, backwards: int) -> None:
    check(scanned(axis, backwards, out_axis=axis, out_backwards=backwards))
    check(scanned(axis, backwards, out_axis=2 - axis, out_backwards=1 - backwards), counts=(7,))
    check(scanned(axis, backwards, out_axis=-1), counts=(7,))


def test_scan_with_defaults(check: Check) -> None:
    ins, outs = ([info(name, shape=(4,)) for name in names] for names in ("ap", "br"))
    one = body([node("Add", ["a", "p"], ["b"]), node("Neg", ["b"], ["r"])], outs, ins)
    nodes = [node("Scan", ["zero", "w"], ["y", "all"], body=one, num_scan_inputs=1), node("Add", ["x", "all"], ["z"])]
    outputs = [info("y", shape=(None,)), info("all", shape=(None, None)), info("z", shape=(None, None, None))]
    constants = {"zero": np.zeros(4, np.float32), "w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    check(model_of(nodes, [info("x", shape=("N", 3, 4))], outputs, constants), counts=(1, 7))


def test_scans_that_cannot_be_written_out() -> None:
    one = body(
        [node("Add", ["a", "p"], ["b"])], [info("b", shape=(3,))], [info("a", shape=(3,)), info("p", shape=(3,))]
    )
    scan = node("Scan", ["zero", "x"], ["y"], name="s", body=one, num_scan_inputs=1)
    zero = {"zero": np.zeros(3, np.float32)}
    with pytest.raises(UnsupportedOperatorError, match="Scan node 's': the scanned length must be one number from 1"):
        convert(model_of([scan], [X], [info("y", shape=(3,))], zero))
    with pytest.raises(UnsupportedOperatorError, match="Scan node 's': the scanned length must be one number from 1"):
        convert(model_of([scan], [info("x", shape=(MOST_ROUNDS + 1, 3))], [info("y", shape=(3,))], zero))
    model = model_of([scan], [info("x", shape=(2, 3))], [info("y", shape=(3,))], zero)
    model.graph.node[0].attribute.append(helper.make_attribute("scan_input_axes", [4]))
    with pytest.raises(UnsupportedOperatorError, match="Scan node 's': axis 4 is out of range"):
        convert(model)
    model = model_of([scan], [info("x", shape=(2, 3))], [info("y", shape=(3,))], zero)
    model.graph.node[0].attribute.append(helper.make_attribute("scan_input_directions", [0, 1]))
    with pytest.raises(UnsupportedOperatorError, match="Scan node 's': expected 1 axes or directions"):
        convert(model)


# --- functions ---------------------------------------------------------------------------------------------


def function(
    name: str, inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[onnx.NodeProto], **more: Any
) -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, list(inputs), list(outputs), list(nodes), opsets, **more)


def reference(one: onnx.NodeProto, attribute: str, outer: str, kind: int) -> onnx.NodeProto:
    """Let an attribute of a node be that of the function."""
    entry = one.attribute.add()
    entry.name, entry.ref_attr_name, entry.type = attribute, outer, kind
    return one


def test_functions_with_attributes(check: Check) -> None:
    """Passed on, left at their default, and different at each call."""
    steep = reference(node("LeakyRelu", ["a"], ["t"]), "alpha", "slope", onnx.AttributeProto.FLOAT)
    turned = reference(node("ReduceMean", ["t"], ["m"], keepdims=1), "axes", "axes", onnx.AttributeProto.INTS)
    made = function(
        "Bent",
        ["a"],
        ["r"],
        [steep, turned, node("Sub", ["t", "m"], ["r"])],
        attributes=["axes"],
        attribute_protos=[helper.make_attribute("slope", 0.25)],
    )
    nodes = [
        node("Bent", ["x"], ["p"], domain="own", slope=0.5, axes=[1]),
        node("Bent", ["p"], ["q"], domain="own", axes=[1]),
        node("Bent", ["q"], ["y"], domain="own", slope=-1.0, axes=[0]),
    ]
    check(model_of(nodes, [X], [Y], functions=[made]))


def test_functions_in_functions(check: Check) -> None:
    """With the same inner names at every level, and an optional input that is left out."""
    inner = function("Inner", ["a", "b"], ["r"], [node("Mul", ["a", "b"], ["t"]), node("Tanh", ["t"], ["r"])])
    limited = function("Limited", ["a", "low"], ["r"], [node("Clip", ["a", "low"], ["r"])])
    outer = function(
        "Outer",
        ["a"],
        ["r", "t"],
        [
            node("Sin", ["a"], ["t"]),
            node("Inner", ["t", "a"], ["u"], domain="own"),
            node("Inner", ["u", "t"], ["v"], domain="own"),
            node("Limited", ["v", ""], ["r"], domain="own"),
        ],
    )
    nodes = [node("Outer", ["x"], ["p", "s"], domain="own"), node("Outer", ["p"], ["y", "z"], domain="own")]
    check(
        model_of(
            nodes,
            [X],
            [Y, info("s", shape=(None, None)), info("z", shape=(None, None))],
            functions=[inner, limited, outer],
        )
    )


def test_a_function_that_branches_and_loops(check: Check) -> None:
    yes = body([node("Neg", ["t"], ["b"])], [info("b", shape=None)])
    no = body([node("Abs", ["t"], ["b"])], [info("b", shape=None)])
    made = function(
        "Either",
        ["a"],
        ["r"],
        [
            node("Tanh", ["a"], ["t"]),
            node("Shape", ["a"], ["s"]),
            node("Size", ["s"], ["n"]),
            node("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2, np.int64))),
            node("Equal", ["n", "two"], ["q"]),
            node("If", ["q"], ["r"], then_branch=yes, else_branch=no),
        ],
    )
    nodes = [node("Either", ["x"], ["p"], domain="own"), node("Either", ["p"], ["y"], domain="own")]
    check(model_of(nodes, [X], [Y], functions=[made]))


def test_defaults_that_are_passed_on(check: Check) -> None:
    """A function gives its own attribute to another one: by a reference, at every level, with a default or a value."""
    kinds = onnx.AttributeProto.FLOAT
    inner = function(
        "Inner", ["a"], ["r"], [reference(node("LeakyRelu", ["a"], ["r"]), "alpha", "slope", kinds)],
        attribute_protos=[helper.make_attribute("slope", 0.25)],
    )  # fmt: skip
    call = reference(node("Inner", ["a"], ["t"], domain="own"), "slope", "bend", kinds)
    outer = function(
        "Outer", ["a"], ["r"], [call, node("Inner", ["t"], ["u"], domain="own"), node("Neg", ["u"], ["r"])],
        attribute_protos=[helper.make_attribute("bend", 0.75)],
    )  # fmt: skip
    nodes = [node("Outer", ["x"], ["p"], domain="own"), node("Outer", ["p"], ["y"], domain="own", bend=-0.5)]
    check(model_of(nodes, [X], [Y], functions=[inner, outer]))
    branch = body([node("Outer", ["x"], ["b"], domain="own")], [info("b", shape=None)])
    one = node("If", ["q"], ["y"], then_branch=branch, else_branch=branch)
    check(model_of([one], [X], [Y], {"q": np.array(True)}, functions=[inner, outer]))


def test_a_default_that_may_be_either_is_refused() -> None:
    kinds = onnx.AttributeProto.FLOAT
    inner = function(
        "Inner", ["a"], ["r"], [reference(node("LeakyRelu", ["a"], ["r"]), "alpha", "slope", kinds)],
        attribute_protos=[helper.make_attribute("slope", 0.25)],
    )  # fmt: skip
    call = reference(node("Inner", ["a"], ["r"], domain="own"), "slope", "bend", kinds)
    outer = function("Outer", ["a"], ["r"], [call], attributes=["bend"])
    model = model_of([node("Outer", ["x"], ["y"], domain="own")], [X], [Y], functions=[inner, outer])
    with pytest.raises(ConversionError, match="function 'Outer' passes its attribute 'bend' on to 'Inner'"):
        convert(model)


def test_functions_that_call_each_other_are_refused() -> None:
    one = function("One", ["a"], ["r"], [node("Two", ["a"], ["r"], domain="own")])
    two = function("Two", ["a"], ["r"], [node("One", ["a"], ["r"], domain="own")])
    with pytest.raises(ConversionError, match=r"calls itself|Cycle detected"):
        convert(model_of([node("One", ["x"], ["y"], domain="own")], [X], [Y], functions=[one, two]))


# --- operators that ONNX defines by others -----------------------------------------------------------------


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_operators_written_as_functions_twice(tools: Any, check: Check, opset: int) -> None:
    """Their inner names are told apart, in one model and for one name of a node."""
    from rerank_engine.importers.onnx_handlers import HANDLERS

    assert ("", "CenterCropPad") not in HANDLERS
    nodes = [
        node("CenterCropPad", ["x", "shape"], ["a"], name="same", axes=[1]),
        node("CenterCropPad", ["a", "wider"], ["y"], name="same", axes=[1]),
    ]
    constants = {"shape": np.array([2], np.int64), "wider": np.array([5], np.int64)}
    check(model_of(nodes, [X], [Y], constants, opset=opset))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("opset", [12, 13, 22])
def test_an_operator_whose_function_depends_on_its_attributes(check: Check, reduction: str, opset: int) -> None:
    nodes = [
        node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["y", "logs"], name="loss", reduction=reduction),
        node("SoftmaxCrossEntropyLoss", ["logs", "labels"], ["z"], name="loss", reduction=reduction),
    ]
    rank = (7,) if reduction == "none" else ()
    outputs = [info("y", shape=rank), info("logs", shape=(7, 3)), info("z", shape=rank)]
    labels = np.array([0, 1, 2, 2, 1, 0, 0], np.int64)
    check(model_of(nodes, [info("x", shape=(7, 3))], outputs, {"labels": labels}, opset=opset), counts=(1,))


def test_a_function_in_the_version_of_the_model(check: Check) -> None:
    """Softplus, Elu and others had no function before opset 18; their handlers read every version."""
    for opset in (7, 13, 18, 22):
        nodes = [node("Softplus", ["x"], ["a"]), node("Elu", ["a"], ["b"], alpha=0.5), node("Softsign", ["b"], ["y"])]
        check(model_of(nodes, [X], [Y], opset=opset), counts=(7,))


def test_an_unknown_operator_is_refused_by_name() -> None:
    model = model_of([node("Mystery", ["x"], ["y"], name="m", domain="elsewhere")], [X], [Y])
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    with pytest.raises(
        UnsupportedOperatorError, match="Mystery node 'm': this operator of domain 'elsewhere' is not supported"
    ):
        convert(model)
