"""Error of machine code against float64: every model of the benchmark, every kind of code that this machine runs.

    python bench/errors.py [--models build/bench/models] [--only mlp,din] [--subsets 8] [--json]

Each model is converted with all passes, with none, and with random subsets of them, and compiled for this processor and
for each level below it: so AVX-512 code, AVX2 code and SSE code are all run. What a kernel search may pick is drawn at
random for each. Inputs are those of the benchmark, at 1, 10, 50 and 200 candidates; right is the graph without passes,
in float64. The error is relative to the largest score among the calls of one size. The exit status is 1 when one is
above 2e-6.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rerank_engine.benchmark.cards import ModelCard, read_cards
from rerank_engine.benchmark.results import relative_error
from rerank_engine.benchmark.session import truth, truth_graph
from rerank_engine.binding import bind_sizes
from rerank_engine.codegen.compile import compile_graph
from rerank_engine.codegen.target import Target, host_target, named_target
from rerank_engine.graph import Graph
from rerank_engine.importers import convert
from rerank_engine.kernels.gemm import Tiling, legal_tilings
from rerank_engine.passes.pipeline import PASSES
from rerank_engine.ready import runnable_targets
from rerank_engine.search.products import products_of
from rerank_engine.session import MachineCode, Session

ALLOWED = 2e-6
SIZES = (1, 10, 50, 200)


def main() -> int:
    """Measure and tell; returns the exit status."""
    options = parsed()
    cards = read_cards(options.models, [name for name in options.only.split(",") if name])
    worst: dict[str, dict[str, float]] = {}
    for card in cards:
        worst[card.name] = errors_of(card, options.subsets, options.seed)
        if not options.json:
            print(card.name, {name: f"{error:.1e}" for name, error in worst[card.name].items()}, flush=True)
    largest = max(error for found in worst.values() for error in found.values())
    if options.json:
        print(json.dumps({"allowed": ALLOWED, "largest": largest, "models": worst}))
    return 0 if largest <= ALLOWED else 1


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("build/bench/models"))
    parser.add_argument("--only", default="")
    parser.add_argument("--subsets", type=int, default=8, help="random subsets of the passes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def errors_of(card: ModelCard, subsets: int, seed: int) -> dict[str, float]:
    """Largest error by target."""
    random = np.random.default_rng(seed)
    right = truth_graph(card)
    cases = {size: card.draw(size) for size in SIZES}
    answers = {size: truth(right, sets) for size, sets in cases.items()}
    worst: dict[str, float] = {}
    for skipped in subsets_of_passes(random, subsets):
        graph = convert(card.source, skip_passes=skipped).graph
        for name, target in targets():
            session = Session(MachineCode(compile_graph(graph, target, drawn_tilings(random, graph, target))))
            for size, sets in cases.items():
                scores = np.stack([score(session, graph, inputs) for inputs in sets])
                worst[name] = max(worst.get(name, 0.0), relative_error([scores], [np.stack(answers[size])]))
    return worst


def subsets_of_passes(random: np.random.Generator, count: int) -> Iterator[list[str]]:
    """What to skip: nothing, everything, and random subsets."""
    names = sorted(PASSES)
    yield []
    yield names
    for _ in range(count):
        yield [name for name in names if random.random() < 0.5]


def targets() -> list[tuple[str, Target]]:
    """This processor, and the levels below it."""
    return [("host", host_target()), *((name, named_target(name)) for name in runnable_targets())]


def drawn_tilings(random: np.random.Generator, graph: Graph, target: Target) -> dict[tuple[int, int], Tiling]:
    """For each product what a search might pick."""
    found = {}
    for work in products_of(graph):
        choices: Sequence[Tiling] = legal_tilings(work.product.columns, target.lanes, target.registers)
        one = choices[random.integers(len(choices))]
        few = [other.few_rows for other in choices if other.vectors == one.vectors]
        found[work.key] = Tiling(one.vectors, one.many_rows, int(random.choice(few)))
    return found


def score(session: Session, graph: Graph, inputs: dict[str, Any]) -> Any:
    """The only output."""
    sizes = bind_sizes([graph.values[name] for name in graph.inputs], inputs)
    return session.run(inputs, sizes)[graph.outputs[0]]


if __name__ == "__main__":
    sys.exit(main())
