"""Loops whose number of repetitions is known: their body is written out that many times."""

from __future__ import annotations

from rerank_engine.importers.tflite.call import Call
from rerank_engine.importers.tflite.handlers.registry import handles

_MOST_REPETITIONS = 1000
_DEEPEST = 4


@handles("WHILE")
def _while(call: Call) -> None:
    options = call.options("WhileOptions")
    scope = call.scope
    call.arity(len(call.operator.outputs), outputs=len(call.operator.outputs))
    graphs = [_graph_number(call, options[name]) for name in ("cond_subgraph_index", "body_subgraph_index")]
    condition, body = (scope.model.subgraphs[number] for number in graphs)
    count = len(call.operator.inputs)
    if (len(condition.inputs), len(body.inputs), len(body.outputs), len(condition.outputs)) != (count, count, count, 1):
        raise call.refuse("its graphs do not take and give the values that it carries")
    if scope.prefix.count("/repetition_") >= _DEEPEST:
        raise call.refuse(f"loops nested deeper than {_DEEPEST} are not supported")
    values = [scope.value(number) for number in call.operator.inputs]
    for repetition in range(_MOST_REPETITIONS + 1):
        prefix = f"{call.label}/repetition_{repetition}/"
        goes_on = scope.nested(graphs[0], values, prefix).constant(condition.outputs[0])
        if goes_on is None or goes_on.size != 1 or goes_on.dtype != bool:
            raise call.refuse("how often it repeats depends on the inputs; unroll the loop in the model (unroll=True)")
        if not goes_on.reshape(-1)[0]:
            for number, value in zip(call.operator.outputs, values, strict=True):
                scope.bind(number, value)
            return
        step = scope.nested(graphs[1], values, prefix)
        values = [step.value(number) for number in body.outputs]
    raise call.refuse(f"it repeats more than {_MOST_REPETITIONS} times")


def _graph_number(call: Call, number: int) -> int:
    # The main graph is number 0 and no loop's body.
    if not 0 < number < len(call.scope.model.subgraphs):
        raise call.refuse(f"it refers to graph {number}, which is no body of a loop")
    return number
