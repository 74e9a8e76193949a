"""Cases of ONNX's node tests that this engine refuses, each with its reason. A case that is not listed must pass."""

from __future__ import annotations

import re

REFUSALS: dict[str, str] = {}
"""Regular expression for whole case names to the reason why such a model is refused."""


def reason(case: str) -> str:
    """Reason why a case is refused; empty when it is not listed.

    >>> reason("test_abs")
    ''
    """
    return next((why for pattern, why in REFUSALS.items() if re.fullmatch(pattern, case)), "")
