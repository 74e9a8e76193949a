"""Environments of the peer engines, one a group: their packages do not go together, and none goes into ours.

    python bench/peers/environments.py --out build/bench/peers

An environment that is there already is left alone; a group that cannot be installed is told with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

GROUPS: dict[str, list[list[str]]] = {
    "openvino": [["openvino", "onnxruntime", "numpy"]],
    "litert": [["ai-edge-litert", "numpy"]],
    "mnn": [["MNN", "numpy"]],
    "ncnn": [["ncnn", "numpy"]],
    # Alone first: as a dependency of others it would come with libraries for GPUs.
    "torch": [["torch==2.13.0"], ["numpy"]],
    # lleaves asks for no version of llvmlite, and uses a pass manager that later ones do not have.
    "trees": [["lleaves", "llvmlite<0.45", "lightgbm", "onnxruntime", "numpy"]],
    # Converters only: what is measured has none of their packages.
    "litert-convert": [["torch==2.13.0"], ["litert-torch"]],
    # The converter's program is all that is used; its Python part would bring PyTorch.
    "ncnn-convert": [["--no-deps", "pnnx"]],
}
"""Packages by group; each inner list is one call of pip."""

_READY = ".ready"


def python_of(folder: Path) -> Path:
    """Interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def make(group: str, folder: Path) -> str:
    """Make one environment; return why it could not be made, or an empty text."""
    mark = folder / _READY
    if mark.exists():
        return ""
    try:
        if not python_of(folder).exists():
            _call([sys.executable, "-m", "venv", str(folder)])
        for packages in GROUPS[group]:
            _call([str(python_of(folder)), "-m", "pip", "install", "--quiet", *packages])
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines() or [str(error)]
        return f"cannot be installed: {lines[-1]}"[:300]
    mark.touch()
    return ""


def make_all(root: Path) -> dict[str, str]:
    """Make all environments; return reasons by group for those that could not be made."""
    reasons = {}
    for group in GROUPS:
        print(f"environment {group}", flush=True)
        if reason := make(group, root / group):
            print(f"  {reason}", flush=True)
            reasons[group] = reason
    return reasons


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench/peers"))
    options = parser.parse_args()
    print(json.dumps(make_all(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
