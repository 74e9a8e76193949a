"""What code is generated for: processor, vector width, registers, calling convention."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from rerank_engine.errors import CompileError
from rerank_engine.machine import architecture
from rerank_engine.ready import WINDOWS


@dataclass(frozen=True)
class Target:
    """A processor to compile for.

    Attributes
    ----------
    triple
        LLVM target triple. Always an ELF one: the image calls nothing of the operating system, and one object
        format to read is enough for all of them.
    cpu, features
        As LLVM names them.
    lanes
        float32 lanes of a vector.
    registers
        Vector registers.
    calling_convention
        Of the entry function, as the operating system's C compiler has it; empty for the triple's own.
    """

    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int
    calling_convention: str = ""

    @property
    def architecture(self) -> str:
        """First part of the triple."""
        return self.triple.split("-")[0]


def host_architecture() -> str:
    """Architecture of this machine.

    Raises
    ------
    CompileError
        No code can be generated for it.
    """
    found = architecture()
    if not found:
        raise CompileError(f"no machine code for {platform.machine().lower()!r}; supported: x86_64 and aarch64")
    return found


def host_target() -> Target:
    """Detect this machine's processor.

    Examples
    --------
    >>> host_target().lanes in (4, 8, 16)
    True
    """
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return _target(
        host_architecture(),
        llvm.get_host_cpu_name(),
        features.flatten(),
        set_features=_enabled(features),
        is_windows=sys.platform == "win32",
    )


def named_target(cpu: str) -> Target:
    """Target of a processor by LLVM's name, with that processor's own features.

    Parameters
    ----------
    cpu
        For example ``x86-64-v2``, ``x86-64-v3``, ``x86-64-v4``, ``aarch64`` or ``cortex-a76``. The x86 ones follow the
        calling convention of Linux and macOS; with ``-windows`` at the end, that of Windows.

    Raises
    ------
    CompileError
        The name is not known here.
    """
    levels = {
        "x86-64": ("x86_64", set()),
        "x86-64-v2": ("x86_64", set()),
        "x86-64-v3": ("x86_64", {"avx2"}),
        "x86-64-v4": ("x86_64", {"avx2", "avx512f"}),
        "aarch64": ("aarch64", set()),
        "cortex-a76": ("aarch64", set()),
        "apple-m1": ("aarch64", set()),
    }
    name = cpu.removesuffix(WINDOWS)
    if name not in levels or (name != cpu and levels[name][0] != "x86_64"):
        known = [
            *levels,
            *(f"{name}{WINDOWS}" for name, (architecture, _) in levels.items() if architecture == "x86_64"),
        ]
        raise CompileError(f"target {cpu!r} is not known; known: {', '.join(known)}")
    architecture, enabled = levels[name]
    processor = "generic" if name == "aarch64" else name
    return _target(architecture, processor, "", set_features=enabled, is_windows=name != cpu)


def _enabled(features: dict[str, bool]) -> set[str]:
    return {name for name, on in features.items() if on}


def _target(architecture: str, cpu: str, features: str, *, set_features: set[str], is_windows: bool) -> Target:
    if architecture == "x86_64":
        lanes, registers = (16, 32) if "avx512f" in set_features else (8, 16) if "avx2" in set_features else (4, 16)
    else:
        lanes, registers = 4, 32
    return Target(
        triple=f"{architecture}-unknown-linux-gnu",
        cpu=cpu,
        features=features,
        lanes=lanes,
        registers=registers,
        calling_convention="win64cc" if is_windows and architecture == "x86_64" else "",
    )
