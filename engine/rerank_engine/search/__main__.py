"""``python -m rerank_engine.search MODEL IMAGE KEY BUDGET_S PARENT FOLDER``: tune a model for the process PARENT.

It ends when that process does or closes stdin, and with it every process that it has started: nobody is left who would
use the result. FOLDER holds its temporary files and is removed then.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path

_LOWER_PRIORITY = 10
_LOOK_S = 0.5


def main() -> int:
    """Tune; what goes wrong is the exit code and the last line of stderr."""
    model, image, key, budget_s, parent, folder = sys.argv[1:]
    threading.Thread(target=_end_with_the_parent, args=(int(parent), folder), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_LOWER_PRIORITY)
    from rerank_engine.model import Model
    from rerank_engine.runtime import image_key
    from rerank_engine.search.tune import GIVEN_UP, tune

    found = Model.read(model)
    if image_key(found.file_identity) != key:
        sys.exit(f"{model} is not the model any more that was loaded from it")
    reason = tune(found.graph, Path(image), key, float(budget_s))["reason"]
    if reason.startswith(GIVEN_UP):
        sys.exit(reason)
    return 0


def _end_with_the_parent(parent: int, folder: str) -> None:
    if os.name == "posix":
        # A process that was forked from the parent may hold the other end of stdin long after the parent is gone.
        while os.getppid() == parent and not select.select([sys.stdin], [], [], _LOOK_S)[0]:
            pass
    else:
        sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
