"""A search worker whose kernels go wrong: ``sabotaged.py TILING=FAULT …``, a tiling as its vectors, ``x``, its rows.

Faults: ``wrong`` (leaves the bias out), ``overrun`` (one row too many), ``slow`` (keeps one row in registers),
``hang``, ``crash``, ``refuse`` (the compiler does), ``silent`` (the process leaves without a word).
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys

from rerank_engine.codegen.elf import FlatImage
from rerank_engine.codegen.target import Target
from rerank_engine.errors import CompileError
from rerank_engine.kernels.gemm import Product, Tiling
from rerank_engine.search.kernel import build_kernel
from rerank_engine.search.worker import main

FAULTS = dict(word.split("=") for word in sys.argv[1:])
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
HANG = b"\x00\x00\x00\x14" if IS_ARM else b"\xeb\xfe"
CRASH = b"\x00\x00\x00\x00" if IS_ARM else b"\x0f\x0b"


def sabotaged(product: Product, tiling: Tiling, target: Target, rows: int) -> FlatImage:
    """A kernel with the fault that its tiling has."""
    fault = FAULTS.get(f"{tiling.many_rows}x{tiling.vectors}", "")
    if fault == "refuse":
        raise CompileError("the compiler does not like it")
    if fault == "silent":
        os._exit(7)
    if fault in ("hang", "crash"):
        return FlatImage((HANG if fault == "hang" else CRASH) * 32, {"kernel": 0})
    if fault == "wrong":
        return build_kernel(dataclasses.replace(product, has_bias=False), tiling, target, rows)
    if fault == "slow":
        tiling = Tiling(tiling.vectors, 1, 1)
    return build_kernel(product, tiling, target, rows + (fault == "overrun"))


if __name__ == "__main__":
    main(sabotaged)
