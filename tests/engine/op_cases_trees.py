"""A case of the tree operator: random ensembles over features of both dtypes, with NaN on either side."""

from __future__ import annotations

from typing import Any

import numpy as np

from rerank_engine.importers.trees.arrays import ensemble_arrays
from rerank_engine.importers.trees.model import LESS, LESS_EQUAL, Ensemble, Tree, one_leaf_each

FEATURES, OUTPUTS, SPLITS = 5, 2, 7


def tree(random: np.random.Generator, number: int) -> Tree:
    """A full tree of three levels."""
    children = np.arange(SPLITS)
    below = [
        np.where(2 * children + side < SPLITS, 2 * children + side, SPLITS - 1 - (2 * children + side))
        for side in (1, 2)
    ]
    return Tree(
        random.integers(0, FEATURES, SPLITS),
        random.choice([LESS, LESS_EQUAL], SPLITS),
        random.choice([-1.0, 0.0, 0.5, 1e30, -np.inf], SPLITS) + random.normal(0, 0.1, SPLITS),
        random.random(SPLITS) < 0.5,
        below[0],
        below[1],
        *one_leaf_each(random.normal(size=SPLITS + 1), number % OUTPUTS),
    )


def ensembles(b: Any) -> None:
    random = np.random.default_rng(0)
    for dtype in ("float32", "float64"):
        for sums in (np.float32, np.float64):
            trees = tuple(tree(random, number) for number in range(9))
            model = Ensemble("forest", FEATURES, trees, random.normal(size=OUTPUTS).astype(sums))
            arrays = ensemble_arrays(model, dtype).named().values()
            constants = [b.constant(array, array.dtype.name) for array in arrays]
            b.output(b.node("TreeEnsemble", b.input(dtype, "N", FEATURES), *constants, features=FEATURES))


CASES = {"TreeEnsemble": ensembles}

# Sums in float32 are rounded after every tree, as the frameworks do.
TOLERANCES = {"TreeEnsemble": (1e-6, 2e-6)}
