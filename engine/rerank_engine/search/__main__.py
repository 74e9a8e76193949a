"""``python -m rerank_engine.search MODEL IMAGE KEY BUDGET_S``: tune a model for the process that started this one.

It ends when stdin does, and with it every process that it has started: nobody is left who would use the result.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

_LOWER_PRIORITY = 10


def main() -> int:
    """Tune; what goes wrong is the exit code and the last line of stderr."""
    model, image, key, budget_s = sys.argv[1:]
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_LOWER_PRIORITY)
    from rerank_engine.model import Model
    from rerank_engine.runtime import image_key
    from rerank_engine.search.tune import tune

    found = Model.read(model)
    if image_key(found.file_identity) != key:
        sys.exit(f"{model} is not the model any more that was loaded from it")
    tune(found.graph, Path(image), key, float(budget_s))
    return 0


def _end_with_the_parent() -> None:
    sys.stdin.read()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
