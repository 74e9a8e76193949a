"""Ready machine code: compiled elsewhere for a kind of processor, and put beside the model.

``din.rrm`` is accompanied by ``din.x86-64-v3.rri`` and the like. Where none was compiled on this machine, the best of
them that this processor can run answers: the first score waits for no compiler, and none need be installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rerank_engine.machine import architecture, processor_features

if TYPE_CHECKING:
    from pathlib import Path

    from rerank_engine.image import Image

_X86_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "x86-64-v2": {"popcnt", "sse4_1", "sse4_2", "ssse3"},
}
"""What each level needs beyond the one below, by the names of Linux (System V ABI, x86-64 psABI, section 3.1.1)."""

WINDOWS = "-windows"
"""End of the names of targets with the calling convention of Windows."""


def runnable_targets() -> list[str]:
    """Names of targets whose code this machine runs, fastest first.

    Examples
    --------
    >>> all(name.startswith(("x86-64-v", "aarch64")) for name in runnable_targets())
    True
    """
    if architecture() != "x86_64":
        return ["aarch64"] if architecture() else []
    have = processor_features()
    found: list[str] = []
    for name, needed in reversed(_X86_LEVELS.items()):
        if not needed <= have:
            break
        found.insert(0, name + (WINDOWS if sys.platform == "win32" else ""))
    return found


def ready_path(model: str, target: str) -> str:
    """Where the machine code of a model file for a target lies.

    >>> ready_path("models/din.rrm", "x86-64-v3")
    'models/din.x86-64-v3.rri'
    """
    return f"{os.path.splitext(model)[0]}.{target}.rri"  # noqa: PTH122 -- pathlib is slow to import


def ready_key(identity: bytes, target: str) -> list[str]:
    """What a ready image says of the model, the engine and the target that it is for."""
    from rerank_engine.runtime import ENGINE_VERSION

    return [identity.hex(), ENGINE_VERSION, target]


def compile_ready(model: str | os.PathLike[str], target: str, out: Path | None = None) -> tuple[Path, Image]:
    """Compile a model file for a target and store the machine code beside it.

    Parameters
    ----------
    model
        Path of a ``.rrm`` file.
    target
        A name that :func:`rerank_engine.codegen.target.named_target` knows.
    out
        Where to store it; by default where :func:`~rerank_engine.runtime.load` looks for it.

    Returns
    -------
    tuple
        The path written, and the machine code.

    Raises
    ------
    ModelFileError
        The file is damaged or of another version.
    CompileError
        The target is not known.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> compile_ready("din.rrm", "x86-64-v3")  # doctest: +SKIP
    """
    from pathlib import Path

    from rerank_engine.codegen.compile import compile_graph
    from rerank_engine.codegen.target import named_target
    from rerank_engine.format import read_model
    from rerank_engine.format.content import read_header
    from rerank_engine.format.layout import file_identity

    processor = named_target(target)
    image = compile_graph(read_model(model), processor)
    image.meta["ready"] = ready_key(file_identity(read_header(model)), target)
    path = out or Path(ready_path(os.fspath(model), target))
    image.write(path, private=False)
    return path, image
