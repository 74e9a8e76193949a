"""Machine code of the kernels, made by Numba once: flat, position-independent, needing nothing when it runs.

``python -m rerank_features.compiler.build`` puts it into the package, ready for this kind of processor; with target
names as arguments, for those.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any

from rerank_engine.codegen.assembly import compile_assembly, with_attributes
from rerank_engine.codegen.target import Target, host_target, named_target
from rerank_engine.image import Image
from rerank_engine.ready import runnable_targets
from rerank_features.compiler.machine import SIGNATURES, ready_path, source_digest

_LIBRARY = """
define void @memset(ptr %place, i8 %byte, i64 %count) {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i8, ptr %place, i64 %i
  store i8 %byte, ptr %at
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
"""What LLVM calls for a loop that only fills."""

_WIDEST_VECTORS = '"prefer-vector-width"="512"'
"""Of a target's vectors the widest: most of the time goes into flat loops over candidates."""


def build_image(target: Target | None = None) -> Image:
    """Compile every entry for a target; default: this machine.

    Returns
    -------
    Image
        Its meta holds ``entries`` and ``source``, the digest of what it was made from.

    Raises
    ------
    CompileError
        The code would need something from outside.

    Examples
    --------
    >>> image = build_image()  # doctest: +SKIP
    >>> sorted(image.meta)  # doctest: +SKIP
    ['compile_ms', 'entries', 'source']
    """
    started = time.perf_counter()
    target = target or host_target()
    assembly = with_attributes(_assembly(), target, _WIDEST_VECTORS)
    assembly = re.sub(r'^target triple = ".*"$', f'target triple = "{target.triple}"', assembly, flags=re.MULTILINE)
    if target.calling_convention:
        names = "|".join(SIGNATURES)
        plain, special = rf"^define i64 @({names})\(", rf"define {target.calling_convention} i64 @\1("
        assembly = re.sub(plain, special, assembly, flags=re.MULTILINE)
    flat = compile_assembly(assembly, target, *SIGNATURES, vectorize=True)
    meta = {
        "entries": flat.entries,
        "source": source_digest(),
        "compile_ms": round((time.perf_counter() - started) * 1e3, 1),
    }
    return Image(flat.code, meta, memoryview(b""))


def _assembly() -> str:
    """One module of all entries under their plain names; everything else is internal to it."""
    import llvmlite.binding as llvm
    from numba import types
    from numba.core import config

    # Only the whole module is worth optimising, and for its target.
    config.OPT = config._OptLevel("0")
    from rerank_features.compiler.entries import ENTRIES

    module = None
    for entry in ENTRIES:
        count = SIGNATURES[entry.py_func.__name__]
        arguments = (types.int64,) * count
        entry.compile(types.int64(*arguments))
        result = entry.overloads[arguments]
        part = llvm.parse_assembly(str(result.library.get_llvm_str()))
        if module is None:
            module = part
        else:
            module.link_in(part)
        _link(module, _wrapper(entry.py_func.__name__, result.fndesc.llvm_func_name, count))
    assert module is not None
    _link(module, _LIBRARY)
    # LLVM calls the library only after it has thrown away what is internal and not called.
    kept = {*SIGNATURES, "memset"}
    for function in module.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    return str(module)


def _link(module: Any, text: str) -> None:
    """Add functions that are written for any target."""
    import llvmlite.binding as llvm

    further = llvm.parse_assembly(text)
    further.triple, further.data_layout = module.triple, module.data_layout
    module.link_in(further)


def _wrapper(name: str, mangled: str, count: int) -> str:
    """Numba's calling convention behind a plain one."""
    given = ", ".join(f"i64 %a{index}" for index in range(count))
    kinds = ", ".join(["i64"] * count)
    return f"""
declare i32 @"{mangled}"(ptr, ptr, {kinds})
define i64 @{name}({given}) {{
  %result = alloca i64
  %error = alloca ptr
  %status = call i32 @"{mangled}"(ptr %result, ptr %error, {given})
  %value = load i64, ptr %result
  ret i64 %value
}}
"""


def build_ready(*targets: str) -> None:
    """Put ready images into the package; by default for the best target that this machine runs.

    Examples
    --------
    >>> build_ready("x86-64-v3", "aarch64")  # doctest: +SKIP
    """
    for name in targets or runnable_targets()[:1]:
        build_image(named_target(name)).write(ready_path(name), private=False)


if __name__ == "__main__":
    build_ready(*sys.argv[1:])
