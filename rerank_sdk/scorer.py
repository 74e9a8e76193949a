"""Model and features of a bundle, ready to run, and the patches of its users."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine import load
from rerank_engine.errors import ModelFileError, StoreError
from rerank_engine.passes.expose_head import HEAD_INPUT
from rerank_features import FeaturePipeline
from rerank_sdk.bundle import Bundle, check_fit
from rerank_sdk.personal import Patch, PersonalisationResult
from rerank_sdk.store import EventStore

_MAX_PATCHES = 10_000


class Scorer:
    """A bundle in use.

    Parameters
    ----------
    bundle
        Model and feature spec.
    cache_dir
        Where machine code is kept.

    Raises
    ------
    BundleError, ModelFileError, SpecError
        The parts are damaged or do not fit each other.
    """

    def __init__(self, bundle: Bundle, cache_dir: str | Path | None = None) -> None:
        model, spec = bundle.model(), bundle.spec()
        check_fit(model, spec)
        self.bundle = bundle
        self.model_hash = model.content_hash
        self.pipeline = FeaturePipeline(spec)
        self.engine = load(model, cache_dir=cache_dir)
        self.input_names = [value.name for value in model.inputs]
        self._score_name = model.outputs[0].name

    def score(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Score every candidate.

        Returns
        -------
        tuple
            (N,) float32 scores, and (N, H) float32 inputs of the last layer or None when the model has no such output.
        """
        result = self.engine.run({name: arrays[name] for name in self.input_names})
        if not isinstance(result, dict):
            return result.reshape(-1), None
        return result[self._score_name].reshape(-1), result.get(HEAD_INPUT)


@dataclass(frozen=True)
class ActivePatch:
    """A patch in use and its version."""

    patch: Patch
    version: int


class UserPatches:
    """Patches of many users, read from the store when first needed.

    Parameters
    ----------
    store
        Where they are kept.
    base_model
        Content hash of the model in use; patches of another model are ignored.
    """

    def __init__(self, store: EventStore, base_model: str) -> None:
        self._store = store
        self.base_model = base_model
        self._known: OrderedDict[str, ActivePatch | None] = OrderedDict()

    def get(self, user: str) -> ActivePatch | None:
        """The user's patch for this model, or None."""
        if user not in self._known:
            self._keep(user, self._read(user))
        return self._known[user]

    def replace(self, user: str, patch: Patch | None, result: PersonalisationResult) -> int:
        """Put a new patch in use; None returns the user to the shared model when a patch was in use.

        Returns
        -------
        int
            Version in use, 0 for none.

        Raises
        ------
        StoreError
            The store cannot be read, or accepts nothing more.
        """
        current = self.get(user)
        if patch is None and current is None:
            return 0
        if patch is None and current is not None and not result.pairs:
            return current.version  # nothing speaks against it
        stored = self._store.load_patch(user)
        version = (stored.version if stored else 0) + 1
        content = patch if patch is not None else Patch(self.base_model, np.zeros(0, np.float32), 0.0)
        created_ms = max((example.time_ms for example in self._store.load_examples(user)), default=0)
        try:
            self._store.save_patch(
                user, content.to_bytes(), version=version, base_model=self.base_model, created_ms=created_ms
            )
        except StoreError:
            queued = self._store.load_patch(user)
            if queued is None or queued.version != version:
                raise
            # It waits in memory and is written as soon as the file can be: the store's health says so.
        self._keep(user, ActivePatch(patch, version) if patch is not None else None)
        return version if patch is not None else 0

    def forget(self, user: str) -> None:
        """Drop a user's patch from memory."""
        self._known.pop(user, None)

    def _read(self, user: str) -> ActivePatch | None:
        stored = self._store.load_patch(user)
        if stored is None or stored.base_model != self.base_model:
            return None
        try:
            patch = Patch.from_bytes(stored.patch)
        except ModelFileError:
            return None
        # No weights: the user was returned to the shared model.
        usable = len(patch.weight) > 0 and patch.base_model == self.base_model
        return ActivePatch(patch, stored.version) if usable else None

    def _keep(self, user: str, patch: ActivePatch | None) -> None:
        self._known[user] = patch
        self._known.move_to_end(user)
        while len(self._known) > _MAX_PATCHES:
            self._known.popitem(last=False)
