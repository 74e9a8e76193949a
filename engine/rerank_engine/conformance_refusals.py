"""Cases of ONNX's node tests that this engine refuses, each with its reason. A case that is not listed must pass.

The list stands in ``conformance_refusals.json``: reason to names of cases.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path


@cache
def refusals() -> dict[str, str]:
    """Name of each refused case to the reason why such a model is refused.

    >>> len(refusals()["test_cast_FLOAT_to_FLOAT16"]) > 0
    True
    """
    listed = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: reason for reason, names in listed.items() for name in names}


def reason(case: str) -> str:
    """Reason why a case is refused; empty when it is not listed.

    >>> reason("test_abs")
    ''
    """
    return refusals().get(case, "")
