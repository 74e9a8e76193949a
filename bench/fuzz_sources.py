"""Corrupt sources at random and see that convert refuses each, or gives a model that holds what it says.

    python bench/fuzz_sources.py --count 20000 [--seed 0] [--json] [--kinds onnx tflite ...] [--case NUMBER]

Sources are small sound models of every kind that we parse ourselves: ONNX, TFLite, Caffe (text and binary), LightGBM
(text and JSON), XGBoost (JSON and UBJSON). PyTorch modules and SavedModels are read by their own packages. Damage comes
as raw bytes (cuts, flips, overwritten words, moved, doubled and lost pieces) and by structure: fields of protocol
buffers and FlatBuffers, types and keys of JSON, lines and words of text, and for ONNX also what whole models can be
wrong in, such as circles, subgraphs in subgraphs, and data in other files. What converts is verified, saved and read
back, run in NumPy, and a share of it as machine code, all in worker processes with a limit of memory. A case follows
from seed, kinds and number alone; ``--case`` repeats one, ``--save`` keeps its files.

Accepted outcomes: a typed error; a model that can be used. Anything else is a finding: it is told at once on the
standard error output, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))
campaign = importlib.import_module("model_fuzzing.campaign")
results = importlib.import_module("model_fuzzing.outcome")
FAILURES = results.FAILURES
corpus, outcome, source = (
    importlib.import_module(f"source_fuzzing.{name}") for name in ("corpus", "outcome", "source")
)

WAITING_FACTOR = 6
"""A worker is ended when a case takes this many times the allowed processor time on the clock: machines are shared."""

MEMORY_BYTES = 4 * 1024**3
"""What a worker may take beyond what it has before the first case, addresses included."""


def main() -> int:
    """Run a campaign, or a part of it as a worker; returns the exit status."""
    options = parsed()
    if options.worker or options.case is not None:
        sources = corpus.read_corpus(options.kinds)
        with tempfile.TemporaryDirectory() as directory:
            if options.worker:
                # Brings in every package that is needed.
                outcome.examine(sources[0], sources[0].files, Path(directory), compiled=True)
                campaign.limit_memory(address_bytes() + MEMORY_BYTES)
                campaign.work(
                    lambda case: run_one(sources, options, case, directory)[::2], range(*options.worker), sys.stdout
                )
                return 0
            return repeat(sources, options, directory)
    started = perf_counter()
    tally = run(options)
    result = {
        "cases": tally.cases,
        "seed": options.seed,
        "kinds": sorted(options.kinds),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "ways": {way: dict(sorted(kinds.items())) for way, kinds in sorted(tally.ways.items())},
        "failures": len(tally.findings),
        "findings": tally.findings[:100],
        "seconds": round(perf_counter() - started, 1),
    }
    print(json.dumps(result, indent=None if options.json else 1))
    return int(bool(tally.findings))


def run_one(sources: list[Any], options: argparse.Namespace, case: int, directory: str) -> tuple[str, Any, Any]:
    """Make and examine one case; returns the way of damage, the files and the outcome."""
    started = process_time()
    way, files, ended = outcome.run_case(sources, options.seed, case, Path(directory), options.compiled_share)
    took_s = process_time() - started
    if took_s > options.limit_s and ended.kind not in FAILURES:
        ended = results.Outcome(results.HANG, f"it took {took_s:.0f} s; {ended.kind}: {ended.detail}")
    return way, files, ended


def repeat(sources: list[Any], options: argparse.Namespace, directory: str) -> int:
    """Run one case in this process and tell what became of it."""
    way, files, ended = run_one(sources, options, options.case, directory)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (options.save / name).write_bytes(content)
    print(json.dumps({"case": options.case, "way": way, "kind": ended.kind, "detail": ended.detail}, indent=1))
    return int(ended.kind in FAILURES)


def address_bytes() -> int:
    """Addresses that this process has taken, where the system tells; the limit counts them all."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[0]) * os.sysconf("SC_PAGESIZE") if statistics.exists() else 0


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="number of corrupted sources")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--kinds", nargs="+", default=list(source.DEFAULT_KINDS), choices=list(source.SHARES))
    parser.add_argument("--compiled-share", type=float, default=0.07, help="share of the cases run as machine code")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=20.0, help="most processor time of one case, in seconds")
    parser.add_argument("--case", type=int, help="repeat one case in this process")
    parser.add_argument("--save", type=Path, help="with --case: write the corrupted files into this folder")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count < 0 or options.workers < 1 or options.limit_s <= 0 or not 0 <= options.compiled_share <= 1:
        parser.error("--count must be at least 0, --workers at least 1, --limit-s above 0, --compiled-share 0 to 1")
    return options


def run(options: argparse.Namespace) -> Any:
    """Run all cases, with a progress bar on a terminal."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--compiled-share", str(options.compiled_share)]
    command += ["--limit-s", str(options.limit_s), "--kinds", *options.kinds]
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[failures]} failures"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=options.count, failures=0)
        told = 0

        def on_case(tally: Any) -> None:
            nonlocal told
            progress.update(task, completed=tally.cases, failures=len(tally.findings))
            for finding in tally.findings[told:]:
                print(json.dumps(finding), file=sys.stderr, flush=True)
            told = len(tally.findings)

        waiting_s = WAITING_FACTOR * options.limit_s
        return campaign.run_campaign([*command, "--worker"], options.count, options.workers, waiting_s, on_case)


if __name__ == "__main__":
    sys.exit(main())
