"""A server to replay against: the lists that a retrained recommender would have sent, never shown to anyone.

Rating logs hold no server lists, so these are *constructed*, and every report that rests on them says so. The
server is kept strong, so that a lift over it means something: alternating least squares (Hu, Koren and
Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008, by the library `implicit`) plus
recent popularity, retrained on a schedule, with the user's own past folded in up to the moment of the
request. It knows nothing later than that.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import DataError, InputError, MissingExtraError
from rerank_simulator.logs.movielens import RatingLog

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class ServerConfig:
    """How the server learns and blends.

    The defaults were chosen on MovieLens-100K by recall@100 and nDCG@10 of the likes of the visits within the
    first 60 % of the log's time; nothing later was looked at.

    Attributes
    ----------
    factors, alpha, regularization, iterations
        Of alternating least squares: latent factors, confidence of a like, penalty, sweeps.
    like_rating
        A rating of at least this is a like; only likes are learned from.
    popularity_weight
        Weight of the standardised log popularity beside the standardised factor score.
    popularity_half_life_days
        A like counts half as much after this many days.
    retrain_days
        A new snapshot every so many days, counted from the log's first event.
    list_length
        Longest list.
    seed
        Of the initial factors.

    Raises
    ------
    InputError
        A value is out of range.

    Examples
    --------
    >>> ServerConfig(seed=3).retrain_days
    7.0
    """

    factors: int = 32
    alpha: float = 4.0
    regularization: float = 20.0
    iterations: int = 15
    like_rating: float = 4.0
    popularity_weight: float = 3.0
    popularity_half_life_days: float = 7.0
    retrain_days: float = 7.0
    list_length: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise InputError(f"{field.name} must be {'an integer' if whole else 'a number'}, got {value!r}")
            free_of_sign = field.name in ("like_rating", "popularity_weight", "regularization", "seed")
            if not math.isfinite(value) or value < 0 or (value == 0 and not free_of_sign):
                raise InputError(f"{field.name} must be {'0 or more' if free_of_sign else 'positive'}, got {value!r}")


@dataclass(frozen=True, eq=False)
class ServerList:
    """A list as the server would have sent it.

    Attributes
    ----------
    candidates
        (K,) int32 positions in the log's `item_ids`, best first; K is at most `list_length`.
    scores
        (K,) float32, never rising.
    trained_ms
        When the snapshot behind it was trained, milliseconds since 1970, UTC.
    """

    candidates: NDArray[np.int32]
    scores: NDArray[np.float32]
    trained_ms: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What the server knows about items from the events strictly before `trained_ms`. All arrays are read-only.

    Attributes
    ----------
    trained_ms
        Milliseconds since 1970, UTC.
    item_popularity
        (I,) int64: ratings so far.
    item_mean_rating
        (I,) float32: mean of the ratings so far; NaN where there is none.
    popularity_score
        (I,) float64: log of the decayed count of likes, standardised over known items; 0 elsewhere.
    factors
        (I, F) float64 item factors; zero rows where no like is known.
    """

    trained_ms: int
    item_popularity: NDArray[np.int64]
    item_mean_rating: NDArray[np.float32]
    popularity_score: NDArray[np.float64]
    factors: NDArray[np.float64]


class ServerRecommender:
    """Constructed server lists, as of any moment of the log.

    Snapshots are trained when first needed and kept. The same log and configuration give the same lists: one
    thread, 64-bit factors, seeded; across machines up to the last bits of floating point.

    Parameters
    ----------
    log
        All events; each answer uses only those before the moment asked about.
    config
        Settings; the defaults are a strong server for MovieLens-100K.

    Raises
    ------
    DataError
        The log is empty.
    MissingExtraError
        `implicit` is not installed: it comes with the extra ``simulator``.

    Examples
    --------
    >>> day = 86_400_000
    >>> log = RatingLog.from_rows(
    ...     [0, 0, 1, 1, 2], [0, 1, 0, 2, 0], [5, 4, 5, 5, 4], [0, day, day, 2 * day, 9 * day],
    ...     user_ids=("u", "v", "w"), item_ids=("a", "b", "c"),
    ... )
    >>> server = ServerRecommender(log, ServerConfig(factors=2))
    >>> server.list_for(user=0, time_ms=8 * day).candidates.tolist()
    [2]
    """

    def __init__(self, log: RatingLog, config: ServerConfig | None = None) -> None:
        if not len(log.user):
            raise DataError("ServerRecommender: the log has no events")
        self._log = log
        self._config = config if config is not None else ServerConfig()
        self._als = _als_class()
        self._trained: dict[int, tuple[Snapshot, Any]] = {}
        self._by_user = np.argsort(log.user, kind="stable")  # within a user the order of time stays
        self._user_offsets = np.searchsorted(log.user[self._by_user], np.arange(len(log.user_ids) + 1))
        self._user_times = log.time_ms[self._by_user]

    def snapshot_at(self, time_ms: int) -> Snapshot:
        """The newest snapshot trained at or before a moment.

        Raises
        ------
        InputError
            The moment lies before the log's first event.

        Examples
        --------
        >>> log = RatingLog.from_rows([0], [0], [5], [0], user_ids=("u",), item_ids=("a", "b"))
        >>> ServerRecommender(log).snapshot_at(700_000_000).item_popularity.tolist()
        [1, 0]
        """
        return self._state_at(time_ms)[0]

    def list_for(self, user: int, time_ms: int) -> ServerList:
        """The list that the server would send to a user at a moment.

        Candidates are the items that the snapshot knows and that the user has not rated before the moment.
        Without a like in their past, the user gets them by popularity. Equal scores are ordered by count,
        then by position. In the first retraining period nothing is known yet, and the list is empty.

        Parameters
        ----------
        user
            Position in the log's `user_ids`.
        time_ms
            The start of the visit. Events at this very time are not known to the server.

        Raises
        ------
        InputError
            There is no such user, or the moment lies before the log's first event.

        Examples
        --------
        >>> log = RatingLog.from_rows([0, 0], [0, 1], [5, 4], [0, 0], user_ids="uv", item_ids="ab")
        >>> ServerRecommender(log).list_for(user=1, time_ms=5).candidates.tolist()
        []
        >>> ServerRecommender(log).list_for(user=1, time_ms=700_000_000).candidates.tolist()
        [0, 1]
        """
        users = len(self._log.user_ids)
        if isinstance(user, bool) or not isinstance(user, int | np.integer) or not 0 <= user < users:
            raise InputError(f"user must be a position from 0 to {users - 1}, got {user!r}")
        snapshot, model = self._state_at(time_ms)
        past = self._past_of(int(user), time_ms)
        score = self._config.popularity_weight * snapshot.popularity_score
        known = snapshot.item_popularity > 0
        liked = self._log.item[past[self._log.rating[past] >= self._config.like_rating]]
        if known.any() and len(liked):
            # einsum, not BLAS: the same bits whatever the number of threads.
            fit = np.einsum("if,f->i", snapshot.factors, self._fold_in(model, liked))
            score = score + _standardised(fit, known)
        allowed = known.copy()
        allowed[self._log.item[past]] = False
        items = np.flatnonzero(allowed)
        order = np.lexsort((items, -snapshot.item_popularity[items], -score[items]))
        top = items[order[: self._config.list_length]]
        return ServerList(top.astype(np.int32), score[top].astype(np.float32), snapshot.trained_ms)

    def _past_of(self, user: int, time_ms: int) -> NDArray[np.int64]:
        """Rows of the log: what the user did strictly before a moment."""
        start, end = self._user_offsets[user], self._user_offsets[user + 1]
        known = np.searchsorted(self._user_times[start:end], time_ms, side="left")
        return self._by_user[start : start + known]

    def _fold_in(self, model: Any, liked: NDArray[np.int32]) -> NDArray[np.float64]:
        row = _like_matrix(np.zeros_like(liked), liked, (1, len(self._log.item_ids)))
        return np.asarray(model.recalculate_user(0, row), np.float64)

    def _state_at(self, time_ms: int) -> tuple[Snapshot, Any]:
        start = int(self._log.time_ms[0])
        if isinstance(time_ms, bool) or not isinstance(time_ms, int | np.integer) or time_ms < start:
            raise InputError(f"time_ms must be an integer from the log's first event at {start}, got {time_ms!r}")
        period_ms = max(1, round(self._config.retrain_days * _DAY_MS))
        trained_ms = start + (int(time_ms) - start) // period_ms * period_ms
        if trained_ms not in self._trained:
            self._trained[trained_ms] = self._train(trained_ms)
        return self._trained[trained_ms]

    def _train(self, trained_ms: int) -> tuple[Snapshot, Any]:
        log, config = self._log, self._config
        rows = int(np.searchsorted(log.time_ms, trained_ms, side="left"))
        user, item, rating = log.user[:rows], log.item[:rows], log.rating[:rows]
        liked = rating >= config.like_rating
        items = len(log.item_ids)
        count = np.bincount(item, minlength=items)
        total = np.bincount(item, rating, minlength=items)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        age_days = (trained_ms - log.time_ms[:rows]) / _DAY_MS
        weight = np.where(liked, np.exp2(-age_days / config.popularity_half_life_days), 0.0)
        popularity = np.log1p(np.bincount(item, weight, minlength=items))
        model = None
        factors = np.zeros((items, config.factors))
        if liked.any():
            model = self._fit(_like_matrix(user[liked], item[liked], (len(log.user_ids), items)))
            factors = np.array(model.item_factors, np.float64)  # a copy: the library needs its own writable
        snapshot = Snapshot(
            trained_ms=trained_ms,
            item_popularity=count.astype(np.int64),
            item_mean_rating=mean.astype(np.float32),
            popularity_score=_standardised(popularity, count > 0),
            factors=factors,
        )
        for array in (snapshot.item_popularity, snapshot.item_mean_rating, snapshot.popularity_score, factors):
            array.setflags(write=False)
        return snapshot, model

    def _fit(self, likes: csr_matrix) -> Any:
        config = self._config
        with _one_blas_thread():
            model = self._als(
                factors=config.factors,
                regularization=config.regularization,
                alpha=config.alpha,
                iterations=config.iterations,
                dtype=np.float64,
                num_threads=1,
                random_state=config.seed,
            )
            model.fit(likes, show_progress=False)
            # The Gram matrix that folding in needs is computed on first use: do it under the limit, too.
            _ = model.YtY
        return model


def fixed_item_embeddings(log: RatingLog, before_ms: int, dim: int) -> NDArray[np.float32]:
    """Item embeddings from the events strictly before a moment, by a truncated singular value decomposition.

    Each user's row of the who-rated-what matrix is scaled to length 1, so that heavy users do not dominate,
    then each item's column, so that popular items do not. Item i gets ``V[i] * s``, scaled to length
    1: items that the same users rated lie close together (Deerwester et al., "Indexing by Latent Semantic
    Analysis", 1990).

    Nothing is drawn at random. The decomposition is exact (LAPACK's, of the smaller Gram matrix, in float64),
    components come by falling singular value, and of each the entry of largest magnitude is positive; so two
    machines agree up to rounding, unless two singular values are equal to rounding.

    Parameters
    ----------
    log
        The events.
    before_ms
        Milliseconds since 1970, UTC; events at or after it have no influence.
    dim
        Length of a row; 16 to 64 did equally well on MovieLens-100K. Components that the data lack are zero.

    Returns
    -------
    ndarray
        (I, dim) float32, rows of length 1; zero rows for items without an event before the moment,
        and for those in which the leading components have no part.

    Raises
    ------
    InputError
        `dim` is no positive integer.
    MissingExtraError
        `implicit` with its dependencies is not installed: it comes with the extra ``simulator``.

    Examples
    --------
    >>> log = RatingLog.from_rows(
    ...     [0, 0, 1, 1, 2], [0, 1, 0, 1, 2], [5] * 5, [0] * 5, user_ids="uvw", item_ids="abcd"
    ... )
    >>> rows = fixed_item_embeddings(log, before_ms=1, dim=2)
    >>> (rows @ rows.T).round(3).tolist()[0]
    [1.0, 1.0, 0.0, 0.0]
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise InputError(f"dim must be a positive integer, got {dim!r}")
    rows = int(np.searchsorted(log.time_ms, before_ms, side="left"))
    rated = np.zeros((len(log.user_ids), len(log.item_ids)))
    rated[log.user[:rows], log.item[:rows]] = 1.0
    rated = _unit(_unit(rated, axis=1), axis=0)
    with _one_blas_thread():
        components, strength = _right_singular(rated, dim)
    # Rounded, so that last bits do not choose between entries of equal magnitude.
    peak = np.abs(components).round(9).argmax(axis=0)
    sign = np.where(components[peak, np.arange(len(strength))] < 0, -1.0, 1.0)
    embedding = np.zeros((rated.shape[1], dim))
    embedding[:, : len(strength)] = components * (sign * strength)
    # Rounding noise has a length, too: scaled to 1 it would be an arbitrary direction.
    embedding[np.linalg.norm(embedding, axis=1) < 1e-9] = 0.0
    return _unit(embedding, axis=1).astype(np.float32)


def _right_singular(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Right singular vectors as columns (I, r) and their values (r,), the largest first; r is at most `count`.

    Null values are left out: their vectors are arbitrary.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    squares, vectors = np.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    squares, vectors = squares[::-1][:count], vectors[:, ::-1][:, :count]
    kept = squares > 1e-10 * max(squares.max(initial=0.0), 1e-300)
    strength, vectors = np.sqrt(squares[kept]), vectors[:, kept]
    return (matrix.T @ vectors / strength if wide else vectors), strength


def _unit(matrix: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    length = np.linalg.norm(matrix, axis=axis, keepdims=True)
    return matrix / np.where(length > 0, length, 1.0)


def _standardised(values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean 0 and deviation 1 over the known items; 0 for the others, and for all when they do not differ."""
    inside = values[known]
    spread = inside.std() if inside.size else 0.0
    if spread <= 1e-12:
        return np.zeros_like(values)
    return np.where(known, (values - inside.mean()) / spread, 0.0)


def _like_matrix(user: NDArray[np.int32], item: NDArray[np.int32], shape: tuple[int, int]) -> csr_matrix:
    from scipy.sparse import csr_matrix

    matrix = csr_matrix((np.ones(len(user), np.float32), (user, item)), shape=shape)
    matrix.data[:] = 1.0  # an item liked twice is summed by SciPy; it is one like
    return matrix


def _one_blas_thread() -> AbstractContextManager[Any]:
    """The same bits whatever the number of cores, and no threads that wait for each other on a busy machine."""
    try:
        from threadpoolctl import threadpool_limits  # a dependency of implicit
    except ImportError as error:
        raise MissingExtraError("learning item factors", "simulator") from error
    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits


def _als_class() -> Any:
    try:
        # Not the factory in implicit.als: it would choose a GPU where there is one, and other lists come out.
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError as error:
        raise MissingExtraError("the constructed server", "simulator") from error
    return AlternatingLeastSquares
