"""What whole ONNX models can be wrong in: circles, nesting, sizes, types, data in other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from rerank_engine.importers.onnx_handlers import HANDLERS

from . import pools

OPERATORS = tuple(sorted({name for _, name in HANDLERS}))
TEXTS = (
    *OPERATORS,
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "N",
    "T",
    "x",
    "c1",
    "SUM",
    "linear",
    "forward",
    "reflect",
)

PLACES = (
    *("../outside.bin", "../../../../../../../../etc/passwd", "/etc/passwd", "/dev/zero", "weights.bin", "", "."),
    *(
        "./../outside.bin",
        "model.onnx",
        "missing.bin",
        "..",
        "a/../../outside.bin",
        "weights.bin\0",
        "C:\\x",
        "x" * 5000,
    ),
)
"""Where a tensor may say that its data lies."""

_SIZES = (0, 1, 3, 1000, 2**20, 2**31, 2**40, 2**62, 2**63 - 1, -1, -5)


def change(model: onnx.ModelProto, random: Random) -> None:
    """Make a model wrong in one or two ways, in place."""
    for _ in range(random.choice((1, 1, 2))):
        random.choice(_CHANGES)(model, random)


def change_within_rules(model: onnx.ModelProto, random: Random) -> None:
    """Change a model in one to three ways that ONNX's checker mostly accepts: what is wrong now, only handlers see."""
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(_CHANGES_WITHIN_RULES)(model, random)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for entry in node.attribute:
            if entry.HasField("g"):
                yield from _graphs(entry.g)


def _depth(node: onnx.NodeProto) -> int:
    graphs = [entry.g for entry in node.attribute if entry.HasField("g")]
    return 1 + max((_depth(inner) for graph in graphs for inner in graph.node), default=0)


def _a_graph(model: onnx.ModelProto, random: Random) -> onnx.GraphProto:
    return random.choice(list(_graphs(model.graph)))


def _a_node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto:
    graph = _a_graph(model, random)
    return random.choice(graph.node) if graph.node else graph.node.add()


def _names(graph: onnx.GraphProto) -> list[str]:
    names = [entry.name for entry in (*graph.input, *graph.initializer)]
    return [*names, *(name for node in graph.node for name in node.output), "", "nowhere"]


def input_dims(model: onnx.ModelProto, random: Random) -> None:
    """Other sizes, names and ranks of an input."""
    if not model.graph.input:
        return
    kind = random.choice(model.graph.input).type.tensor_type
    if random.random() < 0.2 or not kind.shape.dim:
        kind.shape.dim.add()
    dim = random.choice(kind.shape.dim)
    match random.randrange(5):
        case 0:
            dim.dim_param = random.choice(("N", "T", "", "batch size", "2*N", "é", "x" * 300))
        case 1:
            dim.Clear()
        case 2:
            del kind.shape.dim[random.randrange(len(kind.shape.dim)) :]
        case 3:
            kind.shape.dim.extend([dim] * random.choice((1, 8, 40)))
        case _:
            dim.dim_value = random.choice(_SIZES)


def types(model: onnx.ModelProto, random: Random) -> None:
    """Other element types of an input, an initializer, or every one of them."""
    number = random.randrange(27)
    tensors = [entry for graph in _graphs(model.graph) for entry in graph.initializer]
    if tensors and random.random() < 0.5:
        random.choice(tensors).data_type = number
    elif model.graph.input:
        random.choice(model.graph.input).type.tensor_type.elem_type = number


def tensors(model: onnx.ModelProto, random: Random) -> None:
    """Other numbers, other shapes, or shapes that do not fit the bytes, of a constant."""
    found = [entry for graph in _graphs(model.graph) for entry in graph.initializer]
    if not found:
        return
    tensor = random.choice(found)
    match random.randrange(6):
        case 0:
            tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.dims[:] = [random.choice(_SIZES) for _ in range(random.choice((0, 1, 2, 5, 40)))]
        case 2:
            tensor.dims[:] = [1] * random.choice((1, 10, 33, 70)) + list(tensor.dims)
        case _:
            _set_numbers(tensor, random)


def _set_numbers(tensor: onnx.TensorProto, random: Random) -> None:
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except (TypeError, ValueError, KeyError, RuntimeError, onnx.checker.ValidationError):
        return
    if array.dtype.kind not in "iuf" or not array.size:
        return
    flat = array.reshape(-1)
    for at in [random.randrange(array.size)] if random.random() < 0.7 else range(min(array.size, 500)):
        if array.dtype.kind == "f":
            with np.errstate(all="ignore"):
                flat[at] = np.float64(pools.real(random, float(flat[at]))).astype(array.dtype)
        else:
            limits = np.iinfo(array.dtype)
            flat[at] = pools.clamped(pools.integer(random, int(flat[at])), int(limits.min), int(limits.max))
    tensor.CopyFrom(numpy_helper.from_array(flat.reshape(array.shape), tensor.name))


def attributes(model: onnx.ModelProto, random: Random) -> None:
    """Another value, type or name of an attribute."""
    node = _a_node(model, random)
    if not node.attribute or random.random() < 0.1:
        node.attribute.append(helper.make_attribute(random.choice(("axis", "axes", "perm", "to", "mode", "x")), 1))
    entry = random.choice(node.attribute)
    match random.randrange(8):
        case 0:
            entry.type = random.choice([value.number for value in AttributeProto.DESCRIPTOR.enum_types[0].values])
        case 1:
            entry.name = random.choice(("axis", "axes", "perm", "direction", "hidden_size", "body", "value", ""))
        case 2:
            node.attribute.remove(entry)
        case 3:
            made = random.choice((1, -1, 2**62, 1.5, float("nan"), "x", [1, 2], [0.5], ["x"], [2**40] * 3))
            entry.CopyFrom(helper.make_attribute(entry.name or "x", made))
        case 4:
            entry.ref_attr_name = random.choice(("x", entry.name))
        case _:
            if entry.ints:
                entry.ints[random.randrange(len(entry.ints))] = pools.clamped(
                    pools.integer(random, entry.ints[0]), -(2**63), 2**63 - 1
                )
            elif entry.floats:
                entry.floats[random.randrange(len(entry.floats))] = pools.real(random)
            elif entry.type == AttributeProto.FLOAT:
                entry.f = pools.real(random, entry.f)
            elif entry.type == AttributeProto.STRING:
                entry.s = random.choice(
                    (b"", b"\xff\xfe", b"linear", b"SOFTMAX", b"ij,jk->ik", b"..." * 40, b"x" * 5000)
                )
            else:
                entry.i = pools.clamped(pools.integer(random, entry.i), -(2**63), 2**63 - 1)


def operators(model: onnx.ModelProto, random: Random) -> None:
    """Another operator or domain of a node."""
    node = _a_node(model, random)
    if random.random() < 0.85:
        domain, node.op_type = random.choice(sorted(HANDLERS))
        node.domain = domain
    else:
        node.domain = random.choice(("", "ai.onnx", "ai.onnx.ml", "local", "x"))
    if random.random() < 0.7:
        del node.attribute[:]


def opsets(model: onnx.ModelProto, random: Random) -> None:
    """Another version, or none, or two of them."""
    match random.randrange(4):
        case 0:
            model.opset_import[0].version = random.choice((-1, 0, 1, 6, 2**40, 99))
        case 1:
            model.opset_import.append(helper.make_opsetid(random.choice(("", "ai.onnx", "x")), random.randrange(1, 30)))
        case _:
            model.opset_import[0].version = random.randrange(7, 27)


def order(model: onnx.ModelProto, random: Random) -> None:
    """Nodes lost, doubled, or in another order."""
    graph = _a_graph(model, random)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    if not nodes:
        return
    at, other = random.randrange(len(nodes)), random.randrange(len(nodes))
    match random.randrange(4):
        case 0:
            del nodes[at]
        case 1:
            nodes.insert(at, nodes[other])
        case 2:
            nodes[at], nodes[other] = nodes[other], nodes[at]
        case 3:
            nodes.reverse()
    del graph.node[:]
    graph.node.extend(nodes)


def wiring(model: onnx.ModelProto, random: Random) -> None:
    """Other inputs and outputs of a node or the graph: swapped, emptied, of later nodes, of itself, too many."""
    graph = _a_graph(model, random)
    names = _names(graph)
    if not graph.node or random.random() < 0.15:
        if graph.output:
            random.choice(graph.output).name = random.choice(names)
        return
    node = random.choice(graph.node)
    match random.randrange(7):
        case 0 if node.output:
            node.output[random.randrange(len(node.output))] = random.choice(names)
        case 1:
            node.input.append(random.choice(names))
        case 2 if node.input:
            del node.input[-1]
        case 3:
            node.output.extend([""] * random.choice((1, 3)) + ["more"])
        case 4:
            node.input.extend(list(node.input) * random.choice((1, 40)))
        case _ if node.input:
            node.input[random.randrange(len(node.input))] = random.choice(names)


def sizes(model: onnx.ModelProto, random: Random) -> None:
    """A node that makes much of little, behind a value of the graph or out of nothing."""
    graph = model.graph
    number = random.choice((5, 1000, 2**20, 2**27, 2**31, 2**40, 2**62, -3))
    source = random.choice(_names(graph))
    vector = numpy_helper.from_array(np.array([number] * random.choice((1, 1, 2, 3, 40)), np.int64), "fuzz_sizes")
    scalars = [numpy_helper.from_array(np.array(entry), f"fuzz_{i}") for i, entry in enumerate((0, number, 1))]
    nodes = [
        helper.make_node("Expand", [source, "fuzz_sizes"], ["fuzz"]),
        helper.make_node("Tile", [source, "fuzz_sizes"], ["fuzz"]),
        helper.make_node("Reshape", [source, "fuzz_sizes"], ["fuzz"]),
        helper.make_node("ConstantOfShape", ["fuzz_sizes"], ["fuzz"]),
        helper.make_node("Pad", [source, "fuzz_sizes"], ["fuzz"]),
        helper.make_node("Range", ["fuzz_0", "fuzz_1", "fuzz_2"], ["fuzz"]),
        helper.make_node("OneHot", [source, "fuzz_1", "fuzz_sizes"], ["fuzz"]),
        helper.make_node("TopK", [source, "fuzz_sizes"], ["fuzz", "fuzz_places"]),
        helper.make_node("Unsqueeze", [source, "fuzz_sizes"], ["fuzz"]),
        helper.make_node("SplitToSequence", [source, "fuzz_1"], ["fuzz"]),
        helper.make_node("DepthToSpace", [source], ["fuzz"], blocksize=min(number, 2**62)),
        helper.make_node("Concat", [source] * random.choice((2, 60)), ["fuzz"], axis=0),
    ]
    graph.initializer.extend([vector, *scalars])
    graph.node.append(random.choice(nodes))
    if random.random() < 0.5:
        graph.node.append(
            helper.make_node(random.choice(("ReduceMax", "Shape", "Neg", "Size")), ["fuzz"], ["fuzz_end"])
        )
        graph.output.append(helper.make_tensor_value_info("fuzz_end", TensorProto.FLOAT, []))
    else:
        graph.output.append(helper.make_tensor_value_info("fuzz", TensorProto.FLOAT, []))


def doubling(model: onnx.ModelProto, random: Random) -> None:
    """A chain of nodes, each of which makes its input larger: 2 to the power of their number."""
    graph = model.graph
    name = random.choice(_names(graph))
    operator = random.choice(("Concat", "Mul", "Add", "Einsum"))
    for number in range(random.choice((8, 30, 70))):
        made = f"fuzz_{number}"
        options: dict[str, int | str] = {}
        if operator == "Concat":
            options = {"axis": random.choice((0, -1))}
        if operator == "Einsum":
            options = {"equation": "...a,...b->...ab"}
        graph.node.append(helper.make_node(operator, [name, name], [made], **options))
        name = made
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, []))


def nesting(model: onnx.ModelProto, random: Random) -> None:
    """The last node in branches of branches, or in loops of loops."""
    graph = model.graph
    if not graph.node or not graph.node[-1].output:
        return
    node, loops = graph.node[-1], random.random() < 0.5
    name = node.output[0]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    yes = numpy_helper.from_array(np.array(True), "fuzz_yes")
    rounds = numpy_helper.from_array(np.array(random.choice((1, 2, 10, 1000, 2**40))), "fuzz_rounds")
    for depth in range(random.choice((2, 3, 8, 24))):
        if inner.ByteSize() > 1 << 20 or _depth(inner) > 24:  # Nodes that are in branches already.
            break
        inner.output[0] = f"fuzz_{depth}"
        if loops:
            same = helper.make_node("Identity", ["fuzz_yes"], [f"fuzz_goes_{depth}"])
            ins = [onnx.ValueInfoProto(name=f"fuzz_{what}_{depth}") for what in ("round", "going")]
            outs = [onnx.ValueInfoProto(name=f"fuzz_{what}{depth}") for what in ("goes_", "")]
            body = helper.make_graph([same, inner] if random.random() < 0.8 else [same], "body", ins, outs)
            inner = helper.make_node("Loop", ["fuzz_rounds", "fuzz_yes"], [name], body=body)
        else:
            out = [onnx.ValueInfoProto(name=f"fuzz_{depth}")]
            other = inner if depth < 6 else helper.make_node("Identity", ["fuzz_yes"], [f"fuzz_{depth}"])
            branches = [helper.make_graph([node], "branch", [], out) for node in (inner, other)]
            inner = helper.make_node("If", ["fuzz_yes"], [name], then_branch=branches[0], else_branch=branches[1])
    graph.node[-1].CopyFrom(inner)
    graph.initializer.extend([yes, rounds])


def calls(model: onnx.ModelProto, random: Random) -> None:
    """Functions that call each other: in a circle, or each the next one several times."""
    count, times = random.choice((1, 2, 5, 30, 200)), random.choice((1, 2, 10))
    circle = random.random() < 0.4
    opset = [helper.make_opsetid("", model.opset_import[0].version), helper.make_opsetid("fuzz", 1)]
    for number in range(count):
        is_last = number == count - 1
        called = "F0" if circle else "Neg"
        called = called if is_last else f"F{number + 1}"
        domain = "" if called == "Neg" else "fuzz"
        nodes = [helper.make_node(called, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(times)]
        model.functions.append(helper.make_function("fuzz", f"F{number}", ["v0"], [f"v{times}"], nodes, opset))
    model.opset_import.append(helper.make_opsetid("fuzz", 1))
    model.ir_version = max(model.ir_version, 8)
    graph = model.graph
    graph.node.append(helper.make_node("F0", [random.choice(_names(graph))], ["fuzz"], domain="fuzz"))
    graph.output.append(helper.make_tensor_value_info("fuzz", TensorProto.FLOAT, []))


def other_files(model: onnx.ModelProto, random: Random) -> None:
    """Data of a constant, a node or a subgraph in another file."""
    found = [entry for graph in _graphs(model.graph) for entry in graph.initializer]
    found += [entry.t for node in model.graph.node for entry in node.attribute if entry.HasField("t")]
    if not found or random.random() < 0.1:
        tensor = TensorProto(name="fuzz", dims=[16], data_type=TensorProto.FLOAT)
        model.graph.node.append(helper.make_node("Constant", [], ["fuzz"], value=tensor))
        model.graph.output.append(helper.make_tensor_value_info("fuzz", TensorProto.FLOAT, []))
        found = [model.graph.node[-1].attribute[0].t]
    tensor = random.choice(found)
    size = len(tensor.raw_data) or 64
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    entries = [("location", random.choice(PLACES))]
    if random.random() < 0.2:
        entries.append(("location", random.choice(PLACES)))
    if random.random() < 0.8:
        entries.append(("length", str(random.choice((size, size, size, -1, 2**62, "x", 0)))))
    if random.random() < 0.5:
        entries.append(("offset", str(random.choice((0, 1, 64, -1, 2**62, "x")))))
    if random.random() < 0.1:
        entries.append((random.choice(("basepath", "checksum", "x")), random.choice(PLACES)))
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)


def odd_tensors(model: onnx.ModelProto, random: Random) -> None:
    """A sparse tensor or texts, as an initializer or as the value of a node."""
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "fuzz_values")
    places = numpy_helper.from_array(np.array([0, random.choice((3, -1, 2**40))]), "fuzz_places")
    sparse = helper.make_sparse_tensor(values, places, [random.choice((5, 2**40))])
    words = TensorProto(name="fuzz_words", dims=[2], data_type=TensorProto.STRING, string_data=[b"a", b"\xff"])
    graph = model.graph
    match random.randrange(4):
        case 0:
            graph.sparse_initializer.append(sparse)
            return
        case 1:
            graph.node.insert(0, helper.make_node("Constant", [], ["fuzz"], sparse_value=sparse))
        case 2:
            graph.initializer.append(words)
            graph.node.append(helper.make_node("Identity", ["fuzz_words"], ["fuzz"]))
        case 3:
            graph.node.insert(0, helper.make_node("Constant", [], ["fuzz"], value=words))
    graph.output.append(helper.make_tensor_value_info("fuzz", TensorProto.FLOAT, []))


def names(model: onnx.ModelProto, random: Random) -> None:
    """One value, everywhere, under another name: empty, long, with odd letters, or taken."""
    graph = model.graph
    old = random.choice(_names(graph))
    text = random.choice((*pools.TEXTS, *_names(graph), "a" * 5000)).encode("utf-8", "ignore").decode()
    for node in graph.node:
        node.input[:] = [text if name == old else name for name in node.input]
        node.output[:] = [text if name == old else name for name in node.output]
        node.name = random.choice((node.name, node.name, text))
    for entry in (*graph.input, *graph.output, *graph.initializer):
        entry.name = text if entry.name == old else entry.name
    if random.random() < 0.2:
        graph.name = text


def values(model: onnx.ModelProto, random: Random) -> None:
    """Other numbers in a constant."""
    found = [entry for graph in _graphs(model.graph) for entry in graph.initializer]
    if found:
        _set_numbers(random.choice(found), random)


def options(model: onnx.ModelProto, random: Random) -> None:
    """An attribute that the operator has, with a value of the right type."""
    node = _a_node(model, random)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except (onnx.defs.SchemaError, TypeError):
        return
    if not schema.attributes:
        return
    name = random.choice(sorted(schema.attributes))
    kinds = onnx.defs.OpSchema.AttrType
    known = {entry.name: entry for entry in node.attribute}
    ints = list(known[name].ints) if name in known else []
    small = random.choice((-2, -1, 0, 1, 2, 3, 5, known[name].i if name in known else 1))
    made = {
        kinds.INT: small if random.random() < 0.8 else pools.clamped(pools.integer(random), -(2**63), 2**63 - 1),
        kinds.FLOAT: pools.real(random, known[name].f if name in known else 1.0),
        kinds.STRING: random.choice(_WORDS),
        kinds.INTS: _other_ints(ints, random),
        kinds.FLOATS: [pools.real(random) for _ in range(random.choice((1, 2, 3)))],
        kinds.STRINGS: random.choices(_WORDS, k=random.choice((1, 2, 3))),
    }.get(schema.attributes[name].type)
    if made is None:
        return
    if name in known:
        node.attribute.remove(known[name])
    kind = int(schema.attributes[name].type.value)
    node.attribute.append(helper.make_attribute(name, made, attr_type=kind))


_WORDS = (
    *("forward", "reverse", "bidirectional", "Sigmoid", "Tanh", "Relu", "Affine", "HardSigmoid", "linear", "circular"),
    *(
        "reflect",
        "edge",
        "wrap",
        "constant",
        "DCR",
        "CRD",
        "SAME_UPPER",
        "SAME_LOWER",
        "VALID",
        "NOTSET",
        "tanh",
        "none",
    ),
    *(
        "add",
        "mul",
        "max",
        "min",
        "LEFT",
        "RIGHT",
        "SUM",
        "AVERAGE",
        "MAX",
        "MIN",
        "SOFTMAX",
        "LOGISTIC",
        "PROBIT",
        "x",
    ),
    *("BRANCH_EQ", "BRANCH_LT", "BRANCH_GT", "LEAF", "ij,jk->ik", "i->i", "...i,...j", "ii", "ij->", "L1", "L2"),
)


def _other_ints(ints: list[int], random: Random) -> list[int]:
    if ints and random.random() < 0.7:
        at = random.randrange(len(ints))
        if random.random() < 0.2:
            return [*ints[:at], *ints[at + 1 :]]
        ints[at] = random.choice((ints[at] + 1, ints[at] - 1, -1, 0, 1, 2, 5, 2**31, -(2**40)))
        return ints
    return [random.choice((-1, 0, 1, 2, 3)) for _ in range(random.choice((0, 1, 2, 3, 4)))]


def earlier_inputs(model: onnx.ModelProto, random: Random) -> None:
    """Another value that is made before the node."""
    graph = model.graph
    if not graph.node:
        return
    at = random.randrange(len(graph.node))
    node = graph.node[at]
    known = [entry.name for entry in (*graph.input, *graph.initializer)]
    known += [name for earlier in graph.node[:at] for name in earlier.output if name]
    if node.input and known:
        node.input[random.randrange(len(node.input))] = random.choice((*known, *known, *known, ""))


def same_arity(model: onnx.ModelProto, random: Random) -> None:
    """Another operator with as many inputs and outputs."""
    node = _a_node(model, random)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    fitting = []
    for domain, name in sorted(HANDLERS):
        if domain in versions:
            try:
                schema = onnx.defs.get_schema(name, versions[domain], domain)
            except (onnx.defs.SchemaError, TypeError):
                continue
            needs = [entry for entry, option in schema.attributes.items() if option.required]
            counts = (schema.min_input, len(node.input), schema.max_input), (schema.min_output, len(node.output))
            fits = counts[0][0] <= counts[0][1] <= counts[0][2] and counts[1][0] <= counts[1][1] <= schema.max_output
            if fits and all(entry in {known.name for known in node.attribute} for entry in needs):
                fitting.append((domain, name, set(schema.attributes)))
    if fitting:
        node.domain, node.op_type, kept = random.choice(fitting)
        entries = [AttributeProto.FromString(entry.SerializeToString()) for entry in node.attribute]
        del node.attribute[:]
        node.attribute.extend(entry for entry in entries if entry.name in kept)


def shorter(model: onnx.ModelProto, random: Random) -> None:
    """An optional input or output less, or one more that nobody reads."""
    node = _a_node(model, random)
    if random.random() < 0.5 and len(node.output) > 1:
        node.output[random.randrange(len(node.output))] = ""
    elif len(node.input) > 1:
        del node.input[-1]


def inner_output(model: onnx.ModelProto, random: Random) -> None:
    """Another value as an output of the model."""
    graph = model.graph
    made = [name for node in graph.node for name in node.output if name]
    if made and graph.output:
        random.choice(graph.output).name = random.choice(made)


_CHANGES_WITHIN_RULES: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    *(values, values, options, options, options, earlier_inputs, earlier_inputs, same_arity, same_arity),
    *(shorter, inner_output, input_dims, types),
)

_CHANGES: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    *(input_dims, types, tensors, tensors, attributes, attributes, operators, operators, opsets, order, wiring, wiring),
    *(sizes, sizes, doubling, nesting, calls, other_files, odd_tensors, names),
)
