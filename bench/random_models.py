"""Random ONNX models over many operators and named dimensions: converted, run, compared with ONNX Runtime.

    python bench/random_models.py --count 3000 [--seed 0] [--json] [--case NUMBER [--all] [--save model.onnx]]

Each model has 5 to 25 nodes over the dimensions N and T, and is run at three or four sizes, one of them often empty.
ONNX Runtime (without its optimiser) and machine code are compared with the float64 reference of the converted graph;
what rounding alone decides is left out, as in ``rerank verify``. A model follows from seed and number alone.

Accepted outcomes: the same numbers; a typed error; no oracle, where ONNX Runtime cannot run the model. Else it is a
finding: it is told at once on the standard error output, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import onnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))
campaign = importlib.import_module("model_fuzzing.campaign")
Outcome = importlib.import_module("model_fuzzing.outcome").Outcome
examine = importlib.import_module("random_models.examine")


def main() -> int:
    """Run a campaign, or a part of it as a worker; returns the exit status."""
    options = parsed()
    if options.case is not None:
        return repeat(options)
    if options.worker:
        with tempfile.TemporaryDirectory() as directory:
            campaign.work(lambda case: run_one(options.seed, case, Path(directory)), range(*options.worker), sys.stdout)
        return 0
    started = perf_counter()
    reports = run(options)
    findings = [entry for entry in reports if entry["kind"] not in (examine.SAME, examine.REFUSED, examine.NO_ORACLE)]
    compared: Counter[str] = Counter()
    for entry in reports:
        compared.update(entry["compared"])
    result = {
        "models": len(reports),
        "seed": options.seed,
        "outcomes": dict(sorted(Counter(entry["kind"] for entry in reports).items())),
        "compared": dict(sorted(compared.items())),
        "refused": counted(reports, examine.REFUSED),
        "no_oracle": counted(reports, examine.NO_ORACLE),
        "findings": [{key: entry[key] for key in ("case", "kind", "detail")} for entry in findings],
        "seconds": round(perf_counter() - started, 1),
    }
    print(json.dumps(result, indent=None if options.json else 1))
    return int(bool(findings))


def counted(reports: list[dict[str, Any]], kind: str) -> dict[str, int]:
    """How often each reason was given, most often first."""
    return dict(Counter(entry["reason"] for entry in reports if entry["kind"] == kind).most_common())


def run_one(seed: int, case: int, cache: Path) -> tuple[str, Any]:
    """Examine one model; the parts of the finding travel as JSON."""
    finding = examine.examine(seed, case, cache)
    for image in cache.iterdir():
        image.unlink()
    detail = {"detail": finding.detail[:180], "reason": finding.reason, "compared": finding.compared}
    return "", Outcome(finding.kind, json.dumps(detail))


def repeat(options: argparse.Namespace) -> int:
    """Examine one model in this process, and show it."""
    model, _ = examine.grow_model(options.seed, options.case)
    source = model.model(model.outputs())
    if options.save:
        options.save.write_bytes(source.SerializeToString())
    # Weights are long, and say little.
    text = re.sub(r"(?s)<\s*float\[.*?>", "", onnx.printer.to_text(source))
    print("\n".join(line[:200] for line in text.splitlines()))
    with tempfile.TemporaryDirectory() as directory:
        finding = examine.examine(options.seed, options.case, Path(directory), everything=options.all)
    print(json.dumps({"case": options.case, "parts": model.parts, **vars(finding)}, indent=1))
    return int(finding.kind in examine.FAILURES)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of models")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=120.0, help="longest time of one model, in seconds")
    parser.add_argument("--case", type=int, help="repeat one model in this process")
    parser.add_argument("--all", action="store_true", help="with --case: compare every value")
    parser.add_argument("--save", type=Path, help="with --case: write the model into this file")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count < 0 or options.workers < 1 or options.limit_s <= 0:
        parser.error("--count must be at least 0, --workers at least 1, --limit-s above 0")
    return options


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all models, with a progress bar on a terminal."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--worker"]
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[findings]} findings"))
    console = Console(stderr=True)
    reports: list[dict[str, Any]] = []
    found = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=options.count, findings=0)

        def report(case: int, _: str, outcome: Any) -> None:
            nonlocal found
            try:
                entry = json.loads(outcome.detail)
            except json.JSONDecodeError:  # a crash or a hang, in words
                entry = {"detail": outcome.detail, "reason": "", "compared": {}}
            reports.append({"case": case, "kind": outcome.kind, **entry})
            if outcome.kind not in (examine.SAME, examine.REFUSED, examine.NO_ORACLE):
                found += 1
                shown = {"case": case, "kind": outcome.kind, "detail": entry["detail"]}
                print(json.dumps(shown), file=sys.stderr, flush=True)
            progress.update(task, completed=len(reports), findings=found)

        threads = [
            campaign.threading.Thread(
                target=campaign.supervise,
                args=(command, range(first, options.count, options.workers), options.limit_s, report),
            )
            for first in range(min(options.workers, options.count))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(reports, key=lambda entry: entry["case"])


if __name__ == "__main__":
    sys.exit(main())
