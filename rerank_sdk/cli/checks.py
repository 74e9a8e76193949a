"""The checks of ``rerank doctor``: each looks at one thing and says what to do about it."""

from __future__ import annotations

import ctypes
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rerank_engine.errors import RerankError
from rerank_sdk.cli.output import size_text

OK, ABSENT, BROKEN = "ok", "absent", "broken"
"""Works; an extra that is not installed; must be repaired."""

OLDEST_PYTHON = (3, 11)

EXTRAS = {
    "convert": ("onnx",),
    "verify": ("onnx", "onnxruntime"),
    "torch": ("onnx", "onnxscript", "torch"),
    "tensorflow": ("onnx", "tensorflow", "tf2onnx"),
    "sklearn": ("onnx", "skl2onnx", "sklearn"),
    "train": ("implicit", "onnx", "onnxscript", "scipy", "torch"),
    "simulator": ("implicit", "matplotlib", "scipy"),
    "arrow": ("pyarrow",),
    "parquet": ("duckdb",),
    "encrypted": ("sqlcipher3",),
    "serve": ("starlette", "uvicorn"),
    "gpu": ("wgpu",),
    "npu": ("onnxruntime",),
}
"""Extras of the distribution and the modules that they bring."""

RESERVED_EXTRAS = ("serve", "gpu", "npu")
"""Extras that nothing uses yet."""

_NOTHING = "nothing to do"
_RETURN = {"x86_64": b"\xc3", "amd64": b"\xc3", "aarch64": b"\xc0\x03\x5f\xd6", "arm64": b"\xc0\x03\x5f\xd6"}


@dataclass(frozen=True)
class Check:
    """What a check found.

    Attributes
    ----------
    name
        What was looked at.
    status
        :data:`OK`, :data:`ABSENT` or :data:`BROKEN`.
    found
        What is there.
    advice
        What to do.
    """

    name: str
    status: str
    found: str
    advice: str = _NOTHING


def run_checks(bundle: Path | None = None) -> Iterator[Check]:
    """Yield every check, one after the other; a check that fails unexpectedly is a broken one.

    Parameters
    ----------
    bundle
        The bundle to check; None takes the built-in one.
    """
    checks: dict[str, Callable[[], Check]] = {"python": check_python}
    checks |= {name: _package_check(name) for name in ("numpy", "numba", "llvmlite")}
    checks |= {
        "machine": check_machine,
        "CPU target": check_target,
        "executable memory": check_executable_memory,
        "cache folder": check_cache,
        "kernel search": check_search,
    }
    checks |= {f"extra [{name}]": _extra_check(name) for name in EXTRAS}
    checks["bundle"] = lambda: check_bundle(bundle)
    for name, check in checks.items():
        try:
            yield check()
        except Exception as error:
            yield Check(name, BROKEN, f"{type(error).__name__}: {error}", "install rerank-sdk again: pip install -U")


def check_python() -> Check:
    """Version of the interpreter."""
    found = f"{platform.python_version()} ({platform.python_implementation()})"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", BROKEN, found, f"use Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Check("python", OK, found)


def check_package(name: str) -> Check:
    """Whether a package can be imported, and its version."""
    way_out = f"pip install --force-reinstall {name}"
    try:
        __import__(name)
        return Check(name, OK, version(name))
    except PackageNotFoundError:
        return Check(name, BROKEN, "importable, but without its metadata", way_out)
    except ImportError as error:
        return Check(name, BROKEN, f"cannot be imported: {error}", way_out)


def check_machine() -> Check:
    """What machine code is kept for."""
    from rerank_engine.image import blake2b
    from rerank_engine.machine import machine_signature

    system, architecture, processor = machine_signature()
    digest = blake2b(processor.encode(), digest_size=8).hexdigest()
    return Check("machine", OK, f"{system} {architecture} {digest}", "nothing to do")


def check_target() -> Check:
    """What code is generated for."""
    from rerank_engine.codegen.target import host_target

    try:
        target = host_target()
    except RerankError as error:
        return Check("CPU target", BROKEN, str(error), "use x86-64 or AArch64; here NumPy computes, which is slower")
    return Check("CPU target", OK, f"{target.cpu}, {target.lanes} float32 lanes")


def check_executable_memory() -> Check:
    """Whether the process may run code that it has written: a function that returns at once is called."""
    from rerank_engine.image import ExecutableMemory

    name = "executable memory"
    code = _RETURN.get(platform.machine().lower())
    if code is None:
        return Check(name, BROKEN, f"not tried on {platform.machine()}", "use x86-64 or AArch64")
    try:
        memory = ExecutableMemory(code * 16)
    except RerankError as error:
        way_out = "allow it for this process (SELinux execmem, macOS JIT entitlement); until then NumPy computes"
        return Check(name, BROKEN, str(error), way_out)
    ctypes.CFUNCTYPE(None)(memory.address)()
    return Check(name, OK, "works")


def check_cache() -> Check:
    """Where machine code and data are kept, how much that is, and whether more can be written."""
    from rerank_engine.paths import user_cache_dir

    name, folder = "cache folder", user_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        parts = sorted(part for part in folder.iterdir() if part.is_dir())
        sizes = [f"{part.name} {size_text(_bytes_below(part))}" for part in parts]
    except OSError as error:
        way_out = "set RERANK_CACHE_DIR to a folder that can be written; until then models are compiled at every start"
        return Check(name, BROKEN, f"{folder}: {error}", way_out)
    found = f"{folder} ({', '.join(sizes) or 'empty'})"
    return Check(name, OK, found, "nothing to do, it may be deleted")


def check_search() -> Check:
    """What searches for kernels have found for the models whose machine code is kept here."""
    from rerank_engine.image import Image
    from rerank_engine.paths import user_cache_dir

    name = "kernel search"
    found, searched, faster = 0, 0, []
    for path in sorted((user_cache_dir() / "images").glob("*.rri")):
        try:
            meta = Image.read(path).meta
        except (RerankError, OSError, ValueError):
            continue
        found += 1
        report = meta.get("search")
        searched += report is not None
        if report and report["is_used"]:
            faster.append(f"{meta['interface']['name']} {report['reason']}")
    text = f"{found} models compiled, {searched} searched, {len(faster)} with other kernels than the default"
    way_out = _NOTHING if searched == found else "rerank tune MODEL searches longer than a first launch does"
    return Check(name, OK, "; ".join([text, *faster]), way_out)


def check_extra(name: str) -> Check:
    """Whether the modules of an extra are installed."""
    missing = [module for module in EXTRAS[name] if find_spec(module) is None]
    title = f"extra [{name}]"
    if missing:
        way_out = f"if you need it: pip install 'rerank-sdk[{name}]'"
        if name in RESERVED_EXTRAS:
            way_out = "nothing to do: reserved, no part of this version uses it"
        return Check(title, ABSENT, f"{', '.join(missing)} not installed", way_out)
    return Check(title, OK, ", ".join(EXTRAS[name]))


def check_bundle(path: Path | None) -> Check:
    """Whether a bundle loads, and whether its machine code agrees with the NumPy reference."""
    from rerank_sdk.bundle import Bundle, builtin_bundle
    from rerank_sdk.cli.golden import golden_check

    name = "bundle" if path else "built-in bundle"
    way_out = "make the bundle again" if path else "install rerank-sdk again: pip install --force-reinstall rerank-sdk"
    try:
        bundle = Bundle.read(path or builtin_bundle())
        golden = golden_check(bundle)
    except RerankError as error:
        return Check(name, BROKEN, str(error), way_out)
    found = f"{bundle.name}: {golden.backend}, max abs error against NumPy {golden.max_abs_error:.1e}"
    if not golden.passed:
        way_out = (
            "delete the cache folder and try again; if it stays, report it with the output of rerank doctor --json"
        )
        return Check(name, BROKEN, f"{found}, allowed {golden.limit:.1e}", way_out)
    if golden.backend == "numpy":
        return Check(name, BROKEN, f"{found}; {golden.reason}", "repair what is broken above; NumPy computes, slower")
    return Check(name, OK, found)


def _package_check(name: str) -> Callable[[], Check]:
    return lambda: check_package(name)


def _extra_check(name: str) -> Callable[[], Check]:
    return lambda: check_extra(name)


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
