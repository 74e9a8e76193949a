"""The peers that a benchmark can start, as ``peers.json`` lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rerank_engine.errors import DataError

LIST_NAME = "peers.json"


@dataclass(frozen=True)
class Peer:
    """An engine to compare with.

    Attributes
    ----------
    name
        Of the engine.
    python
        Interpreter of its environment.
    engines
        Python file that opens models with it.
    version
        Of its package; empty where it is not known.
    models
        Path by model; ``{N}`` in it stands for the number of candidates.
    reasons
        Why it cannot run, by ``model`` or ``model N=size``.
    """

    name: str
    python: str
    engines: str
    version: str
    models: Mapping[str, str]
    reasons: Mapping[str, str]

    def path(self, model: str, candidates: int) -> str | None:
        """File of a model for a number of candidates; None where there is none."""
        if model not in self.models:
            return None
        path = self.models[model].replace("{N}", str(candidates))
        return path if Path(path).is_file() else None

    def reason(self, model: str, candidates: int) -> str | None:
        """Why there is no file; None where this peer does not claim to run the model."""
        for key in (f"{model} N={candidates}", model):
            if key in self.reasons:
                return self.reasons[key]
        return f"not converted for {candidates} candidates" if model in self.models else None


def read_peers(folder: Path) -> list[Peer]:
    """Read the list of peers; an absent one is an empty one.

    Raises
    ------
    DataError
        The list is damaged.

    Examples
    --------
    >>> read_peers(Path("no/such/folder"))
    []
    """
    path = folder / LIST_NAME
    if not path.is_file():
        return []
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["peers"]
        return [
            Peer(
                name,
                str(one["python"]),
                str(one["engines"]),
                str(one["version"]),
                dict(one["models"]),
                dict(one["reasons"]),
            )
            for name, one in listed.items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a list of peers: {error!r}; make it again with: make bench") from error
