"""Models of the benchmark and their random inputs, as the files beside the models describe them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError

INPUT_SETS = 8
"""Sets of inputs that the calls take in turn, so that no call finds its input in the cache for sure."""

_KINDS = {"normal": set(), "integers": {"below"}, "mask": {"at_least"}}
_FIELDS = {"shape", "dtype", "kind"}
_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class ModelCard:
    """A model to measure.

    Attributes
    ----------
    name
        Of the model.
    source
        File to convert.
    inputs
        By name: ``shape`` with ``"N"`` for the number of candidates, ``dtype``, ``kind`` and what the kind needs.
    """

    name: str
    source: Path
    inputs: Mapping[str, Mapping[str, Any]]

    @property
    def has_history(self) -> bool:
        """Whether some inputs do not depend on the candidates."""
        fixed = ["N" not in spec["shape"] for spec in self.inputs.values()]
        return any(fixed) and not all(fixed)

    def draw(self, candidates: int, *, same_history: bool = False) -> list[dict[str, NDArray[Any]]]:
        """Draw the sets of inputs for a number of candidates: always the same ones.

        With ``same_history`` what does not depend on the candidates is that of the first set in all of them.
        """

        def seed(place: int, column: int, spec: Mapping[str, Any]) -> list[int]:
            return [0 if same_history and "N" not in spec["shape"] else place, column, candidates]

        return [
            {
                name: _draw(np.random.default_rng(seed(place, column, spec)), spec, candidates)
                for column, (name, spec) in enumerate(self.inputs.items())
            }
            for place in range(INPUT_SETS)
        ]


def _draw(generator: np.random.Generator, spec: Mapping[str, Any], candidates: int) -> NDArray[Any]:
    shape = tuple(candidates if size == "N" else size for size in spec["shape"])
    if spec["kind"] == "normal":
        return generator.standard_normal(shape).astype(spec["dtype"])
    if spec["kind"] == "integers":
        return generator.integers(0, spec["below"], shape).astype(spec["dtype"])
    length = shape[-1]
    ones = generator.integers(min(spec["at_least"], length), length + 1, shape[:-1])
    return (np.arange(length) < ones[..., None]).astype(spec["dtype"])


def read_cards(folder: Path, only: Collection[str] = ()) -> list[ModelCard]:
    """Find the models of a folder.

    Parameters
    ----------
    folder
        Has a ``NAME.json`` for each model.
    only
        Names of the models to take; all when empty.

    Raises
    ------
    DataError
        There is none, one that is asked for is missing, or a description is wrong.

    Examples
    --------
    >>> read_cards(Path("no/such/folder"))
    Traceback (most recent call last):
    rerank_engine.errors.DataError: no models to measure in no/such/folder; make them with: make bench
    """
    cards = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not cards:
        raise DataError(f"no models to measure in {folder.as_posix()}; make them with: make bench")
    names = [card.name for card in cards]
    if unknown := [name for name in only if name not in names]:
        raise DataError(f"no model {unknown[0]!r} in {folder.as_posix()}; there are: {', '.join(names)}")
    return [card for card in cards if not only or card.name in only]


def _read(path: Path) -> ModelCard:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        source, inputs = path.parent / content["source"], content["inputs"]
        for name, spec in inputs.items():
            _check(spec)
            wanted = f"input {name!r}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a model's description: {error!r}") from error
    if not inputs or not source.is_file():
        wanted = str(source) if inputs else "inputs"
        raise DataError(f"{path}: {wanted} missing; make the models again with: make bench")
    return ModelCard(path.stem, source, inputs)


def _check(spec: Mapping[str, Any]) -> None:
    if set(spec) != _FIELDS | _KINDS[spec["kind"]] or spec["dtype"] not in _DTYPES:
        raise ValueError(f"fields {sorted(spec)}, dtype {spec['dtype']!r}")
    sizes = spec["shape"]
    if not all(size == "N" or (isinstance(size, int) and size > 0) for size in sizes):
        raise ValueError(f"shape {sizes}")
    if spec["kind"] == "mask" and not sizes:
        raise ValueError("a mask has a length")
    if not all(isinstance(spec[name], int) and spec[name] > 0 for name in _KINDS[spec["kind"]]):
        raise ValueError(f"kind {spec['kind']!r} needs whole numbers from 1")
