"""What training sets are built from in the benchmark: a log of people where one is given, the generated shop otherwise.

Lists made from a log without lists are constructed: what a user saw next, up to ten rows within half an hour.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError
from rerank_features import Event, FeatureSpec, Item, Request
from rerank_features.log import event_arrays
from rerank_features.ready import ready_spec
from rerank_features.training_set import LabelledRequest
from rerank_simulator.feature_benchmark.bundle import Entry, shop_entries
from rerank_simulator.feature_benchmark.stream import generate_items

MOVIELENS = "movielens"
"""Word that stands for MovieLens-100K in place of a path."""

KUAIRAND_FILE = "processed_standard_kcore_15.tsv"

_LIST_LENGTH = 10
_PAUSE_MS = 1_800_000
_ITEMS = 2_000
_COLUMNS = (
    "user_id",
    "video_id",
    "time_ms",
    "is_follow",
    "is_comment",
    "is_forward",
    "long_view",
    "play_time_ms",
    "duration_ms",
    "is_profile_enter",
)


@dataclass(frozen=True)
class BuildInput:
    """What one training set is built from: a log in columns, as it comes out of a table.

    Attributes
    ----------
    name
        Of the data, for people.
    spec
        Features that fit it.
    items
        With their fields.
    events, lists
        Arguments of :class:`~rerank_features.log.EventColumns` and :class:`~rerank_features.log.ListColumns`.
    """

    name: str
    spec: FeatureSpec
    items: tuple[Item, ...]
    events: Mapping[str, NDArray[Any]]
    lists: Mapping[str, Any]

    @classmethod
    def of_entries(cls, name: str, spec: FeatureSpec, entries: Iterable[Entry]) -> BuildInput:
        """Columns of a stream; items have the fields that they are met with last."""
        items: dict[str, Item] = {}
        events: list[Event] = []
        lists: list[LabelledRequest] = []
        for entry in entries:
            if isinstance(entry, Event):
                events.append(entry)
                continue
            if isinstance(entry, LabelledRequest):
                lists.append(entry)
            met = entry.request.candidates if isinstance(entry, LabelledRequest) else entry
            items.update((item.id, item) for item in met if not item.is_bare or item.id not in items)
        return cls(name, spec, tuple(items.values()), event_arrays(events), _list_columns(spec, lists))


def _list_columns(spec: FeatureSpec, lists: Sequence[LabelledRequest]) -> dict[str, Any]:
    requests = [one.request for one in lists]
    columns: dict[str, Any] = {
        "user": np.array([request.user for request in requests], object),
        "time_ms": np.array([request.time_ms for request in requests], np.int64),
        "offsets": np.cumsum([0, *(len(request.candidates) for request in requests)]),
        "item": np.array([item.id for request in requests for item in request.candidates], object),
        "label": np.concatenate([one.labels for one in lists]),
        "context": {
            name: np.array([one.context.get(name, np.nan) for one in requests]) for name in spec.context.numeric
        }
        | {
            name: np.array([one.context.get(name) for one in requests], object)
            for name in (*spec.context.categorical, *spec.context.text)
        },
    }
    if all(request.scores is not None for request in requests):
        columns["score"] = np.array([score for request in requests for score in request.scores or ()])
    return columns


def load_input(data: str | Path | None, *, seed: int, visits: int) -> BuildInput:
    """Read a log, or generate a stream.

    Parameters
    ----------
    data
        A folder with KuaiRand's standard log, the log itself, ``"movielens"``, or None to generate.
    seed, visits
        Of the generated stream.

    Raises
    ------
    DataError
        There is no log, or it is damaged; the message names file, line and what is wrong.

    Examples
    --------
    >>> given = load_input(None, seed=1, visits=3)
    >>> given.name, given.spec.name, len(given.events["time_ms"]) > 10
    ('generated, seed 1', 'edgerec', True)
    """
    if data is None:
        entries = shop_entries(generate_items(_ITEMS, seed), seed, visits)
        return BuildInput.of_entries(f"generated, seed {seed}", ready_spec("edgerec"), entries)
    if str(data) == MOVIELENS:
        return _movielens()
    path = Path(data)
    path = path / KUAIRAND_FILE if path.is_dir() else path
    return BuildInput.of_entries(f"KuaiRand, {path.name}", ready_spec("kuaishou"), _kuairand(path))


def _movielens() -> BuildInput:
    from rerank_simulator.logs.movielens import load_movielens
    from rerank_simulator.movielens import SPLIT, make_timeline, movielens_spec

    log = load_movielens()
    timeline = make_timeline(log, training=True)
    start_ms, end_ms = (SPLIT.moment_ms(log, share) for share in (SPLIT.embeddings, SPLIT.training))
    entries = timeline.labelled(timeline.entries(start_ms, end_ms, embargo=True))
    return BuildInput.of_entries("MovieLens-100K", movielens_spec(), entries)


def _kuairand(path: Path) -> Iterator[Entry]:
    """Visits of each user, in order of the time at which they begin."""
    visits = _visits(_rows(path))
    visits.sort(key=lambda rows: (rows[0]["time_ms"], rows[0]["user_id"]))
    durations: dict[int, int] = {}
    for rows in visits:
        for row in rows:
            durations[row["video_id"]] = max(row["duration_ms"], durations.get(row["video_id"], 0))
    items = {
        video: Item(id=str(video), numeric={"duration_s": duration / 1000} if duration else {})
        for video, duration in durations.items()
    }
    yield tuple(items.values())
    for rows in visits:
        labels = np.array([row["long_view"] for row in rows], np.float32)
        candidates = [items[row["video_id"]] for row in rows]
        request = Request(user=str(rows[0]["user_id"]), time_ms=rows[0]["time_ms"], candidates=candidates)
        yield LabelledRequest(request, labels)
        for position, row in enumerate(rows):
            yield from _events(row, position)


def _visits(rows: list[dict[str, int]]) -> list[list[dict[str, int]]]:
    """Rows of one user that follow one another, every video once."""
    rows.sort(key=lambda row: (row["user_id"], row["time_ms"], row["video_id"]))
    visits: list[list[dict[str, int]]] = []
    for row in rows:
        open_visit = visits[-1] if visits else []
        if (
            not open_visit
            or len(open_visit) == _LIST_LENGTH
            or open_visit[0]["user_id"] != row["user_id"]
            or row["time_ms"] - open_visit[-1]["time_ms"] > _PAUSE_MS
            or any(row["video_id"] == one["video_id"] for one in open_visit)
        ):
            visits.append([row])
        else:
            open_visit.append(row)
    return visits


def _events(row: Mapping[str, int], position: int) -> Iterator[Event]:
    """What one row says: the video was shown, watched, and answered to."""
    watched_s = row["play_time_ms"] / 1000
    happened: list[tuple[str, float | None]] = [("impression", None), ("watch", watched_s)]
    if row["duration_ms"]:
        happened.append(("completion", row["play_time_ms"] / row["duration_ms"]))
    if watched_s < 1:
        happened.append(("skip", None))
    for kind, column in (
        ("follow", "is_follow"),
        ("comment", "is_comment"),
        ("forward", "is_forward"),
        ("enter_profile", "is_profile_enter"),
    ):
        if row[column]:
            happened.append((kind, None))
    for kind, value in happened:
        yield Event(
            user=str(row["user_id"]),
            item=str(row["video_id"]),
            kind=kind,
            time_ms=row["time_ms"],
            position=position,
            value=value,
        )


def _rows(path: Path) -> list[dict[str, int]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t")
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{path}: the columns {', '.join(missing)} are missing; give {KUAIRAND_FILE} of KuaiRand"
                )
            rows = []
            for row in reader:
                try:
                    rows.append({name: int(float(row[name])) for name in _COLUMNS})
                except (TypeError, ValueError, OverflowError) as error:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {error}; expected a number in every column"
                    ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {path}: {error}; give the folder of KuaiRand, or the word {MOVIELENS!r}"
        ) from None
    if not rows:
        raise DataError(f"{path}: the log has no rows; give {KUAIRAND_FILE} of KuaiRand")
    return rows
