"""The feature code as machine code: mapped and called without Numba. Where there is none yet, it is made and kept.

It depends on no spec: one image serves all. Looked for in this order: ready in the package for this kind of processor,
made on this machine before, made now.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from rerank_engine.errors import ModelFileError
from rerank_engine.image import ExecutableMemory, Image
from rerank_engine.machine import machine_signature
from rerank_engine.paths import user_cache_dir
from rerank_engine.ready import runnable_targets

_log = logging.getLogger("rerank_features")

SIGNATURES: dict[str, int] = {
    "update": 2,
    "emit": 2,
    "replay": 2,
    "forget_user": 2,
    "list_slots": 4,
    "save_slots": 5,
    "load_slots": 4,
    "touch_rows": 3,
    "evict_oldest": 1,
    "add_row": 3,
    "fill_slot_table": 1,
    "fill_item_table": 2,
    "store_inverse_norms": 3,
}
"""Entries, and how many 64-bit integers each takes."""

_SLOW = (
    "compiling the feature code, once for this machine and release: this takes some 15 seconds; later starts load what"
    " is stored now"
)


class Functions:
    """The entries as callables; see :mod:`rerank_features.compiler.entries`.

    Parameters
    ----------
    image
        What :func:`rerank_features.compiler.build.build_image` made.
    """

    update: Callable[[int, int], int]
    emit: Callable[[int, int], int]
    replay: Callable[[int, int], int]
    forget_user: Callable[[int, int], int]
    list_slots: Callable[[int, int, int, int], int]
    save_slots: Callable[[int, int, int, int, int], int]
    load_slots: Callable[[int, int, int, int], int]
    touch_rows: Callable[[int, int, int], int]
    evict_oldest: Callable[[int], int]
    add_row: Callable[[int, int, int], int]
    fill_slot_table: Callable[[int], int]
    fill_item_table: Callable[[int, int], int]
    store_inverse_norms: Callable[[int, int, int], int]

    def __init__(self, image: Image) -> None:
        self._memory = ExecutableMemory(image.code)
        for name, count in SIGNATURES.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)
            setattr(self, name, kind(self._memory.address + image.meta["entries"][name]))


@functools.cache
def source_digest() -> str:
    """Stands for the sources that the machine code is made from."""
    digest = blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def ready_path(target: str) -> Path:
    """Where the package keeps the machine code for a target."""
    return Path(__file__).parent / "ready" / f"{target}.rri"


@functools.cache
def functions() -> Functions:
    """The feature code of this process.

    Raises
    ------
    CompileError
        This system lets no process run generated code.
    """
    source = source_digest()
    for path in map(ready_path, runnable_targets()):
        if (image := _read(path, source)) is not None:
            return Functions(image)
    key = blake2b(repr((source, machine_signature())).encode(), digest_size=16).hexdigest()
    path = user_cache_dir() / "features" / f"{key}.rri"
    image = _read(path, source)
    if image is None:
        _log.warning(_SLOW)
        from rerank_features.compiler.build import build_image

        image = build_image()
        try:
            image.write(path)
        except OSError as error:
            _log.warning("the feature code could not be kept: %s", error)
    return Functions(image)


def _read(path: Path, source: str) -> Image | None:
    try:
        image = Image.read(path)
    except FileNotFoundError:
        return None
    except (ModelFileError, OSError, ValueError) as error:
        _log.warning("feature code not used: %s", error)
        return None
    return image if image.meta.get("source") == source else None
