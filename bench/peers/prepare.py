"""Everything that the peers need: environments, models in their formats, and ``peers.json``, which lists both.

    python bench/peers/prepare.py --models build/bench/models --peers build/bench/peers

``rerank bench engine`` reads ``peers.json``. Run it again after changes: what is there is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

import conversions  # noqa: E402
from conversions import Converted  # noqa: E402
from environments import make_all, python_of  # noqa: E402
from model_definitions import DEFINITIONS  # noqa: E402

PACKAGES = {
    "onnxruntime": ("openvino", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "litert": ("litert", "ai-edge-litert"),
    "mnn": ("mnn", "MNN"),
    "ncnn": ("ncnn", "ncnn"),
    "torchscript": ("torch", "torch"),
    "lightgbm": ("trees", "lightgbm"),
    "lleaves": ("trees", "lleaves"),
}
"""Group of the environment, and the package that names the version, by engine."""


def convert_all(models: Path, peers: Path, out: Path) -> dict[str, Converted]:
    """Convert every model for every peer."""
    folders = {name: out / name for name in ("torchscript", "litert", "mnn", "ncnn", "lleaves")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Converted] = {}
    made["onnxruntime"] = conversions.onnx_files(models, [*DEFINITIONS, "lambdamart"])
    made["openvino"] = conversions.onnx_files(models, list(DEFINITIONS))
    made["lightgbm"] = conversions.lightgbm_text(models)
    steps = {
        "torchscript": lambda: conversions.torchscript(folders["torchscript"]),
        "litert": lambda: conversions.litert(folders["litert"], peers / "litert-convert"),
        "mnn": lambda: conversions.mnn(folders["mnn"], models, peers / "mnn"),
        "ncnn": lambda: conversions.ncnn(folders["ncnn"], peers / "ncnn-convert", made["torchscript"]),
        "lleaves": lambda: conversions.lleaves(folders["lleaves"], models, peers / "trees"),
    }
    for name, step in steps.items():
        print(f"conversion {name}", flush=True)
        made[name] = step()
        for what, reason in made[name].reasons.items():
            print(f"  {what}: {reason}", flush=True)
    return made


def version_of(python: Path, package: str) -> str:
    """Version of a package in an environment; empty where it is not installed."""
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    done = subprocess.run([str(python), "-c", code, package], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("build/bench/models"))
    parser.add_argument("--peers", type=Path, default=Path("build/bench/peers"))
    parser.add_argument("--converted", type=Path, default=Path("build/bench/converted"))
    options = parser.parse_args()
    # Interpreters are links into the system: their folders are made absolute, and not what they point to.
    models, peers, out = (path.absolute() for path in (options.models, options.peers, options.converted))
    peers.mkdir(parents=True, exist_ok=True)
    missing = make_all(peers)
    made = convert_all(models, peers, out)
    listed = {}
    for engine, (group, package) in PACKAGES.items():
        python = python_of(peers / group)
        reasons = dict(made[engine].reasons)
        if group in missing:
            reasons = dict.fromkeys(made[engine].models, missing[group]) | reasons
        listed[engine] = {
            "python": str(python),
            "engines": str(_HERE / "engines.py"),
            "version": version_of(python, package) if group not in missing else "",
            "models": {} if group in missing else made[engine].models,
            "reasons": reasons,
        }
    path = peers / "peers.json"
    path.write_text(json.dumps({"peers": listed}, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
