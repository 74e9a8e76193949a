"""Training data through the very pipeline that serves: a stream of events and labelled requests becomes arrays.

    Event, Event, LabelledRequest, Event, …   ─▶   TrainingSet: rows of candidates, one list a request

No feature can know more in training than on the device, because it is the same code at the same point of the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import InputError
from rerank_features.events import Event, Item, Request
from rerank_features.pipeline import FeaturePipeline
from rerank_features.spec import FeatureSpec


@dataclass(frozen=True)
class LabelledRequest:
    """A request and what its candidates turned out to be worth.

    Attributes
    ----------
    request
        The list at its moment.
    labels
        (N,) float32, not negative; 0 means not relevant.
    mask
        (N,) bool, False for candidates that the loss must ignore (seen already), or None.
    """

    request: Request
    labels: NDArray[np.float32]
    mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class TrainingSet:
    """Lists of candidates with their features and labels.

    Attributes
    ----------
    lists
        Number of lists L.
    offsets
        (L + 1,) int64; list ``i`` has the rows ``offsets[i]`` to ``offsets[i + 1]``.
    per_candidate
        Arrays with a row for each candidate of all lists, by feature name.
    per_list
        Arrays with an entry for each list (user and history features), by feature name.
    labels
        (rows,) float32.
    mask
        (rows,) bool, False for rows that the loss ignores.
    times_ms
        (L,) int64, time of each request.
    spec_hash
        Content hash of the feature spec.
    """

    lists: int
    offsets: NDArray[np.int64]
    per_candidate: dict[str, NDArray[Any]]
    per_list: dict[str, NDArray[Any]]
    labels: NDArray[np.float32]
    mask: NDArray[np.bool_]
    times_ms: NDArray[np.int64]
    spec_hash: str


def build_training_set(spec: FeatureSpec, stream: Iterable[Event | LabelledRequest | Sequence[Item]]) -> TrainingSet:
    """Feed a stream in order of time and collect the features of each labelled request.

    Parameters
    ----------
    spec
        What to compute.
    stream
        Events, labelled requests, and sequences of items to remember, each at its moment.

    Raises
    ------
    InputError
        The stream has no labelled request, or labels do not fit a request.

    Examples
    --------
    >>> from rerank_features.spec import ServerRank
    >>> spec = FeatureSpec(name="feed", dense=[ServerRank(name="rank")])
    >>> request = Request(user="u", time_ms=1, candidates=[Item(id="a"), Item(id="b")])
    >>> data = build_training_set(spec, [LabelledRequest(request, np.array([0, 1], np.float32))])
    >>> data.lists, data.per_candidate["dense"].tolist()
    (1, [[0.0], [1.0]])
    """
    pipeline = FeaturePipeline(spec)
    per_list_names = {name for name, shape in pipeline.array_shapes().items() if shape[:1] != ("N",)}
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in pipeline.array_shapes()}
    labels: list[NDArray[np.float32]] = []
    masks: list[NDArray[np.bool_]] = []
    times: list[int] = []
    for entry in stream:
        if isinstance(entry, Event):
            pipeline.update(entry)
            continue
        if not isinstance(entry, LabelledRequest):
            pipeline.remember(entry)
            continue
        batch = pipeline.emit(entry.request)
        mask = np.ones(batch.n, np.bool_) if entry.mask is None else entry.mask
        if entry.labels.shape != (batch.n,) or mask.shape != (batch.n,):
            raise InputError(
                f"request at {entry.request.time_ms} has {batch.n} candidates but labels of shape"
                f" {entry.labels.shape} and a mask of shape {mask.shape}"
            )
        for name, array in batch.arrays.items():
            rows[name].append(array)
        labels.append(entry.labels.astype(np.float32))
        masks.append(mask)
        times.append(entry.request.time_ms)
    if not labels:
        raise InputError("the stream has no labelled request to learn from")
    sizes = np.array([len(label) for label in labels], dtype=np.int64)
    return TrainingSet(
        lists=len(labels),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        per_candidate={name: np.concatenate(parts) for name, parts in rows.items() if name not in per_list_names},
        per_list={name: np.stack(parts) for name, parts in rows.items() if name in per_list_names},
        labels=np.concatenate(labels),
        mask=np.concatenate(masks),
        times_ms=np.array(times, dtype=np.int64),
        spec_hash=spec.content_hash(),
    )
