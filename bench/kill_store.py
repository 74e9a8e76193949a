"""Kill a writing process again and again, and count what was lost: the long run of the kill tests."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "sdk"))
from store_kills import run_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", choices=("batched", "fsync"), action="append", help="both where left out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    levels = options.level or ["batched", "fsync"]
    totals = {"kill_rounds": 0, "acknowledged_events": 0, "lost_events": 0, "duplicated_events": 0, "damaged_events": 0}
    chores = ("none", "backup", "forget", "prune")
    with tempfile.TemporaryDirectory() as folder:
        parts = [(level, chore) for level in levels for chore in chores]
        for number, (level, chore) in enumerate(parts):
            rounds = options.rounds * (number + 1) // len(parts) - options.rounds * number // len(parts)
            result = run_rounds(
                Path(folder) / f"{level}-{chore}.db", level, rounds, chore=chore, seed=options.seed + number
            )
            for name, value in result._asdict().items():
                totals[name] += value
            if not options.json:
                print(f"{level:8} {chore:8} {result}")
    print(json.dumps(totals) if options.json else totals)
    return int(bool(totals["lost_events"] or totals["duplicated_events"] or totals["damaged_events"]))


if __name__ == "__main__":
    raise SystemExit(main())
