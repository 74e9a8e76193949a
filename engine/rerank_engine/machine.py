"""What this machine is, read without a compiler: the key under which machine code is stored."""

from __future__ import annotations

import functools
import os
import platform
import sys

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def architecture() -> str:
    """``"x86_64"`` or ``"aarch64"``, by whatever name the system has for it; empty for any other.

    >>> architecture() in ("x86_64", "aarch64", "")
    True
    """
    return _ARCHITECTURES.get(platform.machine().lower(), "")


@functools.cache
def machine_signature() -> tuple[str, ...]:
    """Operating system, architecture, and the processor's model and features as the system tells them.

    Two machines with the same signature run each other's machine code.

    Examples
    --------
    >>> len(machine_signature())
    3
    """
    return sys.platform, platform.machine(), _processor()


def _processor() -> str:
    if sys.platform == "linux":
        return _linux_processor("/proc/cpuinfo")
    if sys.platform == "darwin":
        names = (
            "machdep.cpu.brand_string",
            "machdep.cpu.features",
            "machdep.cpu.leaf7_features",
            "hw.optional",
        )
        import subprocess

        result = subprocess.run(["/usr/sbin/sysctl", *names], capture_output=True, text=True, check=False)
        return result.stdout
    return " ".join((platform.processor(), os.environ.get("PROCESSOR_REVISION", "")))


def _linux_processor(path: str | os.PathLike[str]) -> str:
    """Lines that describe the first processor, without those that change from boot to boot."""
    wanted = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features"}
    wanted |= {"CPU implementer", "CPU architecture", "CPU variant", "CPU part"}
    found: dict[str, str] = {}
    try:
        # The first processor stands for all of them; a large machine has hundreds, and the system writes each anew.
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 -- pathlib is slow to import
            content = b""
            while b"\n\n" not in content and (more := file.read(4096)):
                content += more
    except OSError:
        return platform.processor()
    for line in content.partition(b"\n\n")[0].decode(errors="replace").splitlines():
        key, _, text = line.partition(":")
        if key.strip() in wanted:
            found.setdefault(key.strip(), text.strip())
    return repr(sorted(found.items()))


@functools.cache
def processor_features() -> frozenset[str]:
    """What the processor can do, by the names that Linux gives; as far as the system tells without a compiler.

    Examples
    --------
    >>> "no such feature" in processor_features()
    False
    """
    if sys.platform == "win32":
        return _windows_features()
    words = _processor().lower().replace("'", " ").replace(",", " ").replace(":", " ").split()
    # macOS writes AVX1.0, BMI1 and SSE4.1; Linux avx, bmi1 and sse4_1.
    return frozenset({"avx" if word == "avx1.0" else word.replace("sse4.", "sse4_") for word in words})


def _windows_features() -> frozenset[str]:
    """Windows tells of few features; each level of AVX came with all that belongs to it."""
    import ctypes

    is_present = ctypes.WinDLL("kernel32").IsProcessorFeaturePresent  # type: ignore[attr-defined]
    found: set[str] = set()
    for number, names in (
        (38, {"popcnt", "sse4_1", "sse4_2", "ssse3"}),  # PF_SSE4_2_INSTRUCTIONS_AVAILABLE
        (40, {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),  # PF_AVX2_INSTRUCTIONS_AVAILABLE
        (41, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),  # PF_AVX512F_INSTRUCTIONS_AVAILABLE
    ):
        if is_present(number):
            found |= names
    return frozenset(found)
