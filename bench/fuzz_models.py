"""Corrupt model files at random and see that the engine refuses each, or reads it as what it then is.

    python bench/fuzz_models.py --count 100000 [--seed 0] [--json] [--models FILE_OR_FOLDER ...]

Damage comes in four ways: raw bytes (cuts, flips, overwritten words, moved, doubled and lost pieces), the header under
a right checksum, bytes of a section under right hashes, and single fields of the structure under right hashes. A file
that reads is checked node by node, run in NumPy, and a share of those also as machine code, all in worker processes. A
case follows from seed and number alone; ``--case`` repeats one.

Accepted outcomes: a typed error; the same model with the same output; another model, whose hash says so. Anything else
is a finding: it is told at once on the standard error output, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rerank_engine.format import model_bytes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))
campaign, corpus, outcome = (
    importlib.import_module(f"model_fuzzing.{name}") for name in ("campaign", "corpus", "outcome")
)

MEMORY_BYTES = 8 * 1024**3
"""Of one worker, addresses included: LLVM alone reserves more than it uses."""


def main() -> int:
    """Run a campaign, or a part of it as a worker; returns the exit status."""
    options = parsed()
    subjects = read_subjects(options.models)
    if options.worker:
        campaign.limit_memory(MEMORY_BYTES)
        campaign.work(lambda case: run_one(subjects, options, case)[::2], range(*options.worker), sys.stdout)
        return 0
    if options.case is not None:
        way, data, ended = run_one(subjects, options, options.case)
        if options.save:
            options.save.write_bytes(data)
        print(json.dumps({"case": options.case, "way": way, "kind": ended.kind, "detail": ended.detail}, indent=1))
        return int(ended.kind in outcome.FAILURES)
    started = perf_counter()
    tally = run(options)
    result = {
        "cases": tally.cases,
        "seed": options.seed,
        "models": len(subjects),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "ways": {way: dict(sorted(kinds.items())) for way, kinds in sorted(tally.ways.items())},
        "failures": len(tally.findings),
        "findings": tally.findings[:100],
        "seconds": round(perf_counter() - started, 1),
    }
    print(json.dumps(result, indent=None if options.json else 1))
    return int(bool(tally.findings))


def run_one(subjects: list[Any], options: argparse.Namespace, case: int) -> tuple[str, bytes, Any]:
    """Make and examine one case; returns the way of damage, the file and the outcome."""
    return outcome.run_case(subjects[case % len(subjects)], options.seed, case, options.compiled_share)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="number of corrupted files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--models", type=Path, nargs="+", default=[], help="sound .rrm files, or folders of them")
    parser.add_argument("--compiled-share", type=float, default=0.05, help="share of the cases run as machine code")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=60.0, help="longest time of one case, in seconds")
    parser.add_argument("--case", type=int, help="repeat one case in this process")
    parser.add_argument("--save", type=Path, help="with --case: write the corrupted file here")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count < 0 or options.workers < 1 or options.limit_s <= 0 or not 0 <= options.compiled_share <= 1:
        parser.error("--count must be at least 0, --workers at least 1, --limit-s above 0, --compiled-share 0 to 1")
    return options


def read_subjects(models: list[Path]) -> list[Any]:
    """Take the given files, or the small models of the tests."""
    if not models:
        return [outcome.Subject.of(model_bytes(make())) for make in corpus.CORPUS]
    files = [file for path in models for file in (sorted(path.glob("*.rrm")) if path.is_dir() else [path])]
    if not files:
        sys.exit(f"no .rrm files in {', '.join(map(str, models))}")
    return [outcome.Subject.of(file.read_bytes()) for file in files]


def run(options: argparse.Namespace) -> Any:
    """Run all cases, with a progress bar on a terminal."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--compiled-share", str(options.compiled_share)]
    if options.models:
        command += ["--models", *map(str, options.models)]
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

        return campaign.run_campaign([*command, "--worker"], options.count, options.workers, options.limit_s, on_case)


if __name__ == "__main__":
    sys.exit(main())
