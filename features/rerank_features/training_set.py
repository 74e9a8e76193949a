"""Training data through the very pipeline that serves: a stream of events and labelled requests becomes arrays.

    Event, Event, LabelledRequest, Event, …   ─▶   TrainingSet: rows of candidates, one list a request

No feature can know more in training than on the device, because it is the same code at the same point of the stream.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError, InputError, MissingExtraError
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

    def save(self, path: str | Path) -> None:
        """Write everything as one compressed NumPy archive, which :meth:`load` reads.

        Raises
        ------
        DataError
            It cannot be written.
        """
        arrays = {f"candidate/{name}": array for name, array in self.per_candidate.items()}
        arrays |= {f"list/{name}": array for name, array in self.per_list.items()}
        arrays |= {name: getattr(self, name) for name in _COLUMNS}
        try:
            with Path(path).open("wb") as file:
                np.savez_compressed(file, spec_hash=np.array(self.spec_hash), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise DataError(f"cannot write {path}: {error}; give another path") from error

    @classmethod
    def load(cls, path: str | Path) -> TrainingSet:
        """Read what :meth:`save` wrote.

        Raises
        ------
        DataError
            The file cannot be read, or is no training set.
        """
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = dict(archive)
            columns = {name: arrays[name] for name in _COLUMNS}
            spec_hash = str(arrays["spec_hash"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"cannot read a training set from {path}: {error}") from error
        return cls(
            lists=len(columns["times_ms"]),
            per_candidate={name[10:]: array for name, array in arrays.items() if name.startswith("candidate/")},
            per_list={name[5:]: array for name, array in arrays.items() if name.startswith("list/")},
            spec_hash=spec_hash,
            **columns,
        )

    def to_arrow(self) -> tuple[Any, Any]:
        """Two Arrow tables: a row for each candidate, with the number of its list, and a row for each list.

        An array of shape (rows, …) is a column of fixed-size lists; what a list holds is in the order of NumPy.

        Raises
        ------
        MissingExtraError
            pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("Arrow tables", "arrow") from None

        def column(array: NDArray[Any]) -> Any:
            flat = pa.array(array.reshape(-1))
            return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))

        facts = {"spec_hash": self.spec_hash}
        candidates: dict[str, NDArray[Any]] = {"list": np.repeat(np.arange(self.lists), np.diff(self.offsets))}
        candidates |= {"label": self.labels, "mask": self.mask, **self.per_candidate}
        lists: dict[str, NDArray[Any]] = {
            "time_ms": self.times_ms,
            "candidates": np.diff(self.offsets),
            **self.per_list,
        }
        return tuple(
            pa.table({name: column(array) for name, array in table.items()}).replace_schema_metadata(facts)
            for table in (candidates, lists)
        )

    def write_parquet(self, folder: str | Path) -> None:
        """Write the tables of :meth:`to_arrow` as ``candidates.parquet`` and ``lists.parquet``.

        Raises
        ------
        MissingExtraError
            pyarrow is not installed.
        DataError
            They cannot be written.
        """
        tables = self.to_arrow()
        import pyarrow.parquet as parquet

        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for name, table in zip(("candidates", "lists"), tables, strict=True):
                parquet.write_table(table, Path(folder) / f"{name}.parquet")
        except OSError as error:
            raise DataError(f"cannot write to {folder}: {error}; give another path") from error


_COLUMNS = "offsets", "labels", "mask", "times_ms"


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
