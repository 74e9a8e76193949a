"""Convert the PyTorch models to LiteRT, one file for each number of candidates: its kernels take no symbolic one.

    python bench/peers/convert_litert.py --out build/bench/converted/litert --sizes 1,10 mlp din

Runs where litert-torch is installed. Prints one JSON object: a reason for each model that could not be converted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
warnings.filterwarnings("ignore")

import litert_torch  # noqa: E402
from model_definitions import build, example  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = sys.stdout.fileno()
    quiet = os.dup(results)
    os.dup2(sys.stderr.fileno(), results)  # the libraries print what they do
    reasons: dict[str, str] = {}
    for name in options.models:
        for size in map(int, options.sizes.split(",")):
            path = options.out / f"{name}_{size}.tflite"
            if path.exists():
                continue
            try:
                converted = litert_torch.convert(build(name), tuple(example(name, size).values()))
                partial = path.with_suffix(".partial")
                converted.export(str(partial))
                partial.rename(path)
            except Exception as error:  # whatever a converter raises is the reason that is told
                reasons[f"{name} N={size}"] = f"{type(error).__name__}: {error}"[:300]
    os.write(quiet, (json.dumps(reasons) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
