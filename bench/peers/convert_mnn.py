"""Convert ONNX files to MNN files in this process, through the C entry point of MNN's converter.

    python bench/peers/convert_mnn.py SOURCE.onnx RESULT.mnn

The converter's command line reports to a server; its entry point does not.
"""

from __future__ import annotations

import sys

import _tools


def main() -> int:
    source, result = sys.argv[1:]
    # Level 1 keeps what is right for every input; floats stay as they are.
    options = {"-f": "ONNX", "--modelFile": source, "--MNNModel": result, "--bizCode": "bench", "--optimizeLevel": "1"}
    _tools.mnnconvert(["mnnconvert", *(word for pair in options.items() for word in pair)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
