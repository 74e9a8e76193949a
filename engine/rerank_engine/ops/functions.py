"""Elementary functions of floats: exponential, logarithm, circular and hyperbolic functions, error function."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rerank_engine.ops.elementwise import FLOATS, add_operator, emit_function, infer_elementwise
from rerank_engine.ops.registry import Array


def per_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """Apply a function of Python's own to every element, in float64.

    >>> per_element(math.erf)(np.array([0.0, np.inf]))
    array([0., 1.])
    """
    lifted = np.frompyfunc(function, 1, 1)

    def apply(x: Array) -> Array:
        return np.asarray(lifted(x), dtype=x.dtype)

    return apply


_ONE = infer_elementwise(FLOATS, 1)
_FUNCTIONS: tuple[tuple[str, str, Callable[[Array], Array], str], ...] = (
    ("Exp", "e to the x", np.exp, "exponential"),
    ("Log", "natural logarithm", np.log, "logarithm"),
    ("Sin", "sine", np.sin, "sine"),
    ("Cos", "cosine", np.cos, "cosine"),
    ("Tan", "tangent", np.tan, "tangent"),
    ("Asin", "arc sine", np.arcsin, "arcsine"),
    ("Acos", "arc cosine", np.arccos, "arccosine"),
    ("Atan", "arc tangent", np.arctan, "arctangent"),
    ("Sinh", "hyperbolic sine", np.sinh, "hyperbolic_sine"),
    ("Cosh", "hyperbolic cosine", np.cosh, "hyperbolic_cosine"),
    ("Tanh", "hyperbolic tangent", np.tanh, "hyperbolic_tangent"),
    ("Asinh", "inverse hyperbolic sine", np.arcsinh, "inverse_hyperbolic_sine"),
    ("Acosh", "inverse hyperbolic cosine", np.arccosh, "inverse_hyperbolic_cosine"),
    ("Atanh", "inverse hyperbolic tangent", np.arctanh, "inverse_hyperbolic_tangent"),
    ("Erf", "error function", per_element(math.erf), "error_function"),
)

for _name, _summary, _function, _kernel in _FUNCTIONS:
    add_operator(_name, _summary, _ONE, _function, emit_function(_kernel))
