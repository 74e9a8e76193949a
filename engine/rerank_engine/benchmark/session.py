"""What all parts of one benchmark share: folders, processors, limits, our converted models and the failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.benchmark import ours
from rerank_engine.benchmark.cards import ModelCard
from rerank_engine.benchmark.peers import Peer
from rerank_engine.benchmark.process import EngineCommand
from rerank_engine.errors import DataError
from rerank_engine.graph import Graph
from rerank_engine.importers import convert
from rerank_engine.model import Model
from rerank_engine.passes.pipeline import PASSES
from rerank_engine.reference import evaluate


@dataclass
class Session:
    """One run of the benchmark.

    Attributes
    ----------
    folder
        Temporary files of this run.
    peers
        Engines to compare with.
    core
        Processor that the engines run on; None where processes cannot be bound.
    budget_s
        Time for each engine, model and size.
    timeout_s
        After which a worker hangs.
    repeats
        Starts of each engine and model.
    failures
        Reasons by ``model/engine`` or ``model/engine/N``.
    """

    folder: Path
    peers: Sequence[Peer]
    core: int | None
    budget_s: float
    timeout_s: float
    repeats: int
    failures: dict[str, str] = field(default_factory=dict)

    def our_command(self, cache: Path | None = None) -> EngineCommand:
        """Our own engine: this interpreter, with machine code kept in a folder of this run."""
        environment = {ours.CACHE_VARIABLE: str(cache or self.folder / "cache")}
        return EngineCommand(sys.executable, ours.__file__, self.core, environment)

    def peer_command(self, peer: Peer) -> EngineCommand:
        """A peer in its own environment."""
        return EngineCommand(peer.python, peer.engines, self.core)

    def commands(self, card: ModelCard) -> dict[str, EngineCommand]:
        """Every engine that may run a model, ours first."""
        forms = [name for name in ours.FORMS if name != ours.CACHED or card.has_history]
        return dict.fromkeys(forms, self.our_command()) | {
            peer.name: self.peer_command(peer) for peer in self.peers if peer.reason(card.name, 0) is not None
        }

    def convert(self, card: ModelCard, skip: Collection[str] = ()) -> Model:
        """Convert a model."""
        return convert(card.source, skip_passes=skip)

    def stored(self, card: ModelCard) -> Path:
        """Our file of a model."""
        return self.folder / f"{card.name}.rrm"

    def peer_path(self, name: str, card: ModelCard, candidates: int) -> str | None:
        """File that an engine loads; None, with the reason noted, where there is none."""
        if name in ours.FORMS:
            return str(self.stored(card))
        peer = next(peer for peer in self.peers if peer.name == name)
        path = peer.path(card.name, candidates)
        if path is None:
            reason = peer.reason(card.name, candidates)
            is_whole = card.name in peer.reasons
            self.fail(card.name, name, str(reason), None if is_whole else candidates)
        return path

    def fail(self, model: str, engine: str, reason: str, candidates: int | None = None) -> None:
        """Note a failure."""
        self.failures["/".join([model, engine, *([] if candidates is None else [str(candidates)])])] = reason

    def write_inputs(
        self, card: ModelCard, candidates: int, *, same_history: bool = False
    ) -> tuple[Path, list[dict[str, NDArray[Any]]]]:
        """Draw inputs and store them for the workers."""
        sets = card.draw(candidates, same_history=same_history)
        path = self.folder / f"{card.name}_{candidates}{'_same' if same_history else ''}.npz"
        if not path.exists():
            arrays = {f"{place}/{name}": array for place, one in enumerate(sets) for name, array in one.items()}
            np.savez(path, **arrays)  # type: ignore[arg-type]
        return path, sets


def truth_graph(card: ModelCard) -> Graph:
    """The model as it was written: no pass that could be wrong has seen it.

    Raises
    ------
    DataError
        Its inputs are not those that are described.
    """
    graph = convert(card.source, skip_passes=list(PASSES)).graph
    if sorted(graph.inputs) != sorted(card.inputs):
        raise DataError(
            f"{card.source} has the inputs {', '.join(graph.inputs)}, its description {', '.join(card.inputs)}"
        )
    return graph


def truth(graph: Graph, sets: Sequence[Mapping[str, NDArray[Any]]]) -> list[NDArray[Any]]:
    """Right scores, in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return [evaluate(graph, one, precise=True)[graph.outputs[0]] for one in sets]


def choose_cores() -> tuple[int | None, int | None]:
    """Processors for the coordinator and for the engines; the same one where there is one, None without binding."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]
