"""What commands read and where they write: the bundle, the log of the experiment, the files that they make."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rerank_engine.errors import DataError, EventError, MissingExtraError, StoreError
from rerank_sdk.cli.output import note

if TYPE_CHECKING:
    from rerank_features import Event, Item
    from rerank_sdk.bundle import Bundle
    from rerank_simulator.logs import RatingLog


def load_bundle(path: Path | None) -> Bundle:
    """Read the bundle that was asked for, or the one that comes with the package.

    Raises
    ------
    BundleError
        It is missing, damaged, or of a newer format.
    """
    from rerank_sdk.bundle import Bundle, builtin_bundle

    return Bundle.read(path or builtin_bundle())


def load_log() -> RatingLog:
    """MovieLens-100K; a download is announced on stderr.

    Raises
    ------
    DataError
        It is not in the cache and cannot be fetched.
    MissingExtraError
        What works on the log is not installed; then nothing is fetched.
    """
    if find_spec("implicit") is None:
        raise MissingExtraError("replaying MovieLens-100K", "simulator")
    from rerank_simulator.logs import load_movielens

    return load_movielens(progress=note)


def prepare_output(path: Path) -> Path:
    """Make the folder of a file that is written later, and find out now whether it can be.

    Raises
    ------
    DataError
        No file can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}; give another path") from error
    return path


def load_history(state: Path) -> tuple[list[Item], list[Event]]:
    """The items and events that an app has stored, events by time.

    Raises
    ------
    StoreError
        There is no store, or it cannot be read.
    """
    from rerank_features import Item
    from rerank_sdk.store import EventStore

    path = state / "events.db" if state.is_dir() else state
    if not path.is_file():
        raise StoreError(f"{path}: there is no event store; give the folder that the app keeps its state in")
    items = []
    with EventStore.open(path, read_only_ok=True) as store:
        for text in store.load_items().values():
            with suppress(EventError):  # a row that another version wrote
                items.append(Item.from_json(text))
        return items, list(store.read())
