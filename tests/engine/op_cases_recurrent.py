"""Cases of the recurrent operators: candidates as sequences, as steps, and not at all; every option once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrent(op: str) -> Callable[[Any], None]:
    def layer(b: Any, shape: tuple[Any, Any], hidden: int, **options: Any) -> None:
        random = np.random.default_rng(hidden)
        gates = _GATES[op]
        projected = b.input("float32", *shape, gates * hidden, domain="plain")
        scale = min(0.3, hidden**-0.5)  # Larger matrices make chaos of a recurrence: rounding errors grow step by step.
        matrices = (1,) if op == "RNN" else (2, 1) if op == "GRU" else (4,)
        inputs = [projected, *(b.constant(random.normal(0, scale, (hidden, factor * hidden))) for factor in matrices)]
        if op == "GRU":
            inputs.append(b.constant(random.normal(size=hidden)))
        for _ in range(2 if op == "LSTM" else 1):
            batch = options.get("states", 1)
            inputs.append(
                b.input("float32", batch, hidden, domain="plain") if batch != 1 else b.constant(np.zeros((1, hidden)))
            )
        if options.pop("peepholes", False):
            inputs.append(b.constant(random.normal(size=3 * hidden)))
            options["has_peepholes"] = 1
        options.pop("states", None)
        if options.get("has_lengths"):
            inputs.append(b.input("int32", shape[0], domain=str(shape[1] + 1)))
        b.output(*b.nodes(op, inputs, 3 if op == "LSTM" else 2, **options))

    def alone(b: Any) -> None:
        """One sequence, whose sums stay in registers where the state is a few whole vectors."""
        for hidden in (4, 8, 16, 32, 48, 64, 136):
            layer(b, (1, "N"), hidden)
        layer(b, (1, 5), 16, reverse=1, clip=0.5)
        layer(b, (1, 5), 32, has_lengths=1)
        layer(b, (1, 5), 32, has_lengths=1, reverse=1)
        if op == "GRU":
            layer(b, (1, 5), 16, linear_before_reset=1)
            layer(b, (1, "N"), 64, linear_before_reset=1, has_lengths=0, reverse=1)
        if op == "LSTM":
            layer(b, (1, 5), 16, input_forget=1)
            layer(b, (1, 5), 32, peepholes=True)
            layer(b, (1, 5), 16, input_forget=1, peepholes=True, reverse=1)

    def case(b: Any) -> None:
        alone(b)
        layer(b, ("N", 4), 5)
        layer(b, ("N", 3), 16, states="N", reverse=1)
        layer(b, (3, "N"), 7)
        layer(b, (1, 6), 17, clip=0.5)
        layer(b, ("N", 3), 4, has_lengths=1)
        layer(b, ("N", 3), 4, has_lengths=1, reverse=1, states="N")
        if op == "GRU":
            layer(b, ("N", 3), 6, linear_before_reset=1)
            layer(
                b,
                (2, 3),
                33,
                linear_before_reset=1,
                reverse=1,
                activations=("HardSigmoid", "Relu"),
                alphas=(0.2, 0.0),
                betas=(0.5, 0.0),
            )
        if op == "LSTM":
            layer(b, ("N", 3), 6, input_forget=1)
            layer(b, ("N", 3), 6, peepholes=True)
        if op == "RNN":
            for name in (
                "Relu",
                "Sigmoid",
                "Softsign",
                "Softplus",
                "Affine",
                "LeakyRelu",
                "ThresholdedRelu",
                "ScaledTanh",
                "Elu",
            ):
                layer(b, (2, 3), 5, activations=(name,), alphas=(0.7,), betas=(0.3,))

    return case


CASES = {op: _recurrent(op) for op in _GATES}
TOLERANCES = dict.fromkeys(_GATES, (3e-06, 2e-06))
