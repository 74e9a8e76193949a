"""MovieLens-100K: fetched from the package registry into the user's cache, checked, and read as arrays.

The terms of MovieLens (GroupLens, University of Minnesota) allow research use and forbid redistribution
without permission. The files are therefore never part of this project: each user fetches them into a cache of
their own, and whatever is built from them stays there.

Source of the data: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS
5(4), 2015.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank_engine.errors import DataError
from rerank_engine.files import write_atomically
from rerank_engine.paths import user_cache_dir

FETCH_TIMEOUT_S = 300

UNKNOWN_YEAR = 0
"""Stands in :attr:`RatingLog.years` for an item whose year of release is not known."""


@dataclass(frozen=True)
class _Source:
    """A pinned wheel of the registry and the files in it, each with its SHA-256."""

    requirement: str
    wheel_sha256: str
    folder: str
    files: Mapping[str, str]


_SOURCE = _Source(
    requirement="recbole==1.2.1",
    wheel_sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    folder="recbole/dataset_example/ml-100k",
    files={
        "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
        "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
        "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    },
)


@dataclass(frozen=True, eq=False)
class RatingLog:
    """Ratings in the order of time, with what is known about users and items.

    Rows are sorted by (time, user, place in the source). All arrays are read-only.

    Attributes
    ----------
    user, item
        (N,) int32: positions in `user_ids` and `item_ids`.
    rating
        (N,) float32, finite.
    time_ms
        (N,) int64, milliseconds since 1970, UTC, never falling.
    user_ids
        The source's names of the U users.
    item_ids
        The source's names of the I items.
    titles
        I titles; empty where unknown.
    years
        (I,) int16 years of release; :data:`UNKNOWN_YEAR` where unknown.
    genres
        I tuples of genre names; empty where unknown.

    Examples
    --------
    >>> log = RatingLog.from_rows([1, 0], [0, 1], [4, 5], [2_000, 1_000], user_ids="uv", item_ids="ab")
    >>> log.user.tolist(), log.time_ms.tolist()
    ([0, 1], [1000, 2000])
    """

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float32]
    time_ms: NDArray[np.int64]
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    titles: tuple[str, ...]
    years: NDArray[np.int16]
    genres: tuple[tuple[str, ...], ...]

    @classmethod
    def from_rows(
        cls,
        user: ArrayLike,
        item: ArrayLike,
        rating: ArrayLike,
        time_ms: ArrayLike,
        *,
        user_ids: Sequence[str],
        item_ids: Sequence[str],
        titles: Sequence[str] | None = None,
        years: ArrayLike | None = None,
        genres: Sequence[Sequence[str]] | None = None,
    ) -> RatingLog:
        """Check rows in any order and sort them by (time, user, given order).

        Parameters
        ----------
        user, item
            (N,) integer positions in `user_ids` and `item_ids`.
        rating
            (N,) finite numbers.
        time_ms
            (N,) integers, milliseconds since 1970, UTC.
        user_ids, item_ids
            Names, each once.
        titles, years, genres
            One entry an item; unknown everywhere when left out.

        Raises
        ------
        DataError
            Lengths differ, a position points outside, a rating is not finite, a name is repeated, or a time
            is negative.

        Examples
        --------
        >>> log = RatingLog.from_rows([0], [0], [3], [5], user_ids=["u"], item_ids=["a"], genres=[["Drama"]])
        >>> log.genres, log.years.tolist()
        ((('Drama',),), [0])
        """
        users, items = tuple(user_ids), tuple(item_ids)
        for what, names in (("user_ids", users), ("item_ids", items)):
            if len(set(names)) != len(names):
                raise DataError(f"{what}: each id must occur once, {len(names) - len(set(names))} are repeated")
        columns = (
            _integers("user", user, 0, len(users) - 1),
            _integers("item", item, 0, len(items) - 1),
            _finite("rating", rating),
            _integers("time_ms", time_ms, 0, np.iinfo(np.int64).max),
        )
        shapes = [column.shape for column in columns]
        if len(set(shapes)) != 1 or len(shapes[0]) != 1:
            raise DataError(f"rating log: user, item, rating and time_ms must have one shape (N,), got {shapes}")
        order = np.lexsort((columns[0], columns[3]))
        log = cls(
            user=columns[0][order].astype(np.int32),
            item=columns[1][order].astype(np.int32),
            rating=columns[2][order].astype(np.float32),
            time_ms=columns[3][order],
            user_ids=users,
            item_ids=items,
            titles=tuple(titles) if titles is not None else ("",) * len(items),
            years=_integers("years", years if years is not None else [UNKNOWN_YEAR] * len(items), 0, 9999).astype(
                np.int16
            ),
            genres=tuple(map(tuple, genres)) if genres is not None else ((),) * len(items),
        )
        for what, known in (("titles", log.titles), ("years", log.years), ("genres", log.genres)):
            if len(known) != len(items):
                raise DataError(f"{what}: expected one entry for each of {len(items)} items, got {len(known)}")
        for array in (log.user, log.item, log.rating, log.time_ms, log.years):
            array.setflags(write=False)
        return log


def load_movielens(cache_dir: Path | None = None, *, progress: Callable[[str], None] | None = None) -> RatingLog:
    """Read MovieLens-100K; the first call fetches it with pip, later calls need no network.

    100,000 ratings from 1 to 5 by 943 users of 1,682 films, September 1997 to April 1998. The terms allow
    research use and forbid redistribution: do not commit or publish the cached files.

    Parameters
    ----------
    cache_dir
        Where ``movielens-100k/`` lies or is to be created; :func:`rerank_engine.paths.user_cache_dir` when None.
    progress
        Called with one line of text before a download.

    Returns
    -------
    RatingLog
        Users and items are numbered in the order of the source's tables. Every file's SHA-256 is checked at
        every call; a damaged or missing file is fetched again.

    Raises
    ------
    DataError
        The files are missing and cannot be fetched, or are not the ones expected; the message says how to
        place them by hand.

    Examples
    --------
    In use it is ``log = load_movielens()``. A cache that cannot be written is told at once:

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     load_movielens(Path(file.name))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    rerank_engine.errors.DataError: MovieLens-100K: cannot write the cache ...
    """
    folder = (cache_dir if cache_dir is not None else user_cache_dir()) / "movielens-100k"
    contents = _read_checked(folder)
    if contents is None:
        if progress is not None:
            progress(f"fetching MovieLens-100K into {folder} (research use only, no redistribution)")
        contents = _fetch(folder)
    return _parse({name: data.decode() for name, data in contents.items()})


def _read_checked(folder: Path) -> dict[str, bytes] | None:
    """The three files' bytes, or None unless each is there with the recorded hash."""
    contents = {}
    for name, expected in _SOURCE.files.items():
        try:
            data = (folder / name).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != expected:
            return None
        contents[name] = data
    return contents


def _fetch(folder: Path) -> dict[str, bytes]:
    """Download the wheel, take the three files out of it and put them into `folder`, each in one step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
            contents = _unpack(_download(Path(work), folder), folder)
            for name, data in contents.items():
                write_atomically(folder / name, [data])
    except OSError as error:
        raise DataError(f"MovieLens-100K: cannot write the cache {folder}: {error}; {_by_hand(folder)}") from error
    return contents


def _download(work: Path, folder: Path) -> bytes:
    """The pinned wheel's bytes, by pip, so that the user's registry, proxy and certificates are respected."""
    # A wheel only: downloading a source distribution would run its build script.
    options = [
        "--no-deps",
        "--no-binary=:none:",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work), _SOURCE.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"MovieLens-100K: pip needed more than {FETCH_TIMEOUT_S} s for {_SOURCE.requirement}; {_by_hand(folder)}"
        ) from error
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise DataError(
            f"MovieLens-100K: pip could not download {_SOURCE.requirement} (exit status {done.returncode}, "
            f"{len(wheels)} wheels; it said: {said}); {_by_hand(folder)}"
        )
    return wheels[0].read_bytes()


def _unpack(wheel: bytes, folder: Path) -> dict[str, bytes]:
    found = hashlib.sha256(wheel).hexdigest()
    if found != _SOURCE.wheel_sha256:
        raise DataError(
            f"MovieLens-100K: the wheel of {_SOURCE.requirement} has SHA-256 {found}, expected {_SOURCE.wheel_sha256}; "
            f"the registry serves another file: {_by_hand(folder)}"
        )
    # The wheel's hash vouches for what is in it; the files' own hashes vouch for the cache later.
    with zipfile.ZipFile(BytesIO(wheel)) as archive:
        return {name: archive.read(f"{_SOURCE.folder}/{name}") for name in _SOURCE.files}


def _by_hand(folder: Path) -> str:
    return (
        f"to place the files by hand, run 'pip download --no-deps {_SOURCE.requirement}' where there is a "
        f"network, unzip the wheel, and copy {', '.join(_SOURCE.files)} from {_SOURCE.folder}/ into {folder}"
    )


def _parse(tables: Mapping[str, str]) -> RatingLog:
    """The three tables as one log; columns are found by their typed names in the header."""
    users = [row[0] for row in _rows("ml-100k.user", tables, ["user_id:token"])]
    item_columns = ["item_id:token", "movie_title:token_seq", "release_year:token", "class:token_seq"]
    items = list(_rows("ml-100k.item", tables, item_columns))
    user_index = {name: index for index, name in enumerate(users)}
    item_index = {row[0]: index for index, row in enumerate(items)}
    rows = []
    inter_columns = ["user_id:token", "item_id:token", "rating:float", "timestamp:float"]
    for number, (user_id, item_id, rating, seconds) in enumerate(_rows("ml-100k.inter", tables, inter_columns), 2):
        try:
            # Seconds in the file. Doubles hold them in milliseconds exactly.
            rows.append((user_index[user_id], item_index[item_id], float(rating), round(float(seconds) * 1000)))
        except (KeyError, ValueError, OverflowError) as error:
            raise DataError(
                f"ml-100k.inter, line {number}: expected a known user, a known item, a rating and a time in "
                f"seconds, got {(user_id, item_id, rating, seconds)}"
            ) from error
    user_column, item_column, ratings, times = zip(*rows, strict=True) if rows else ((), (), (), ())
    return RatingLog.from_rows(
        user_column,
        item_column,
        ratings,
        times,
        user_ids=users,
        item_ids=[row[0] for row in items],
        titles=["" if row[1] == "unkonwn" else row[1] for row in items],  # the source's own spelling
        years=[int(row[2]) if row[2].isdecimal() else UNKNOWN_YEAR for row in items],
        genres=[[genre for genre in row[3].split() if genre != "unknown"] for row in items],
    )


def _rows(name: str, tables: Mapping[str, str], columns: list[str]) -> Iterator[list[str]]:
    """The asked columns of a tab-separated table."""
    header, *lines = tables[name].removesuffix("\n").split("\n")
    names = header.split("\t")
    missing = [column for column in columns if column not in names]
    if missing:
        raise DataError(f"{name}: expected the columns {columns}, {missing} are missing in the header {header!r}")
    places = [names.index(column) for column in columns]
    for number, line in enumerate(lines, 2):
        fields = line.split("\t")
        if len(fields) != len(names):
            raise DataError(f"{name}, line {number}: expected {len(names)} fields, got {len(fields)}")
        yield [fields[place] for place in places]


def _integers(name: str, values: ArrayLike, low: int, high: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise DataError(f"{name} must hold integers, got {array.dtype}")
    if array.size and (array.min() < low or array.max() > high):
        raise DataError(f"{name} must lie from {low} to {high}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


def _finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{name} must hold numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(f"{name} must be finite, row {row} is {array.flat[row]}; drop the row")
    return array.astype(np.float64)
