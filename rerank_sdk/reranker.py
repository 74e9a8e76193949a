"""The loop: events go in, features follow, the model scores, the list is reordered, feedback teaches a patch.

    track(event) ─▶ store, feature state, training pairs
    rerank(request) ─▶ features ─▶ scores (+ the user's patch) ─▶ order
    personalise(user) ─▶ a new patch, if it helps

One :class:`Reranker` serves many users and many threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.errors import EventError, InputError, RerankError, StoreError
from rerank_features import Event, Item, Request
from rerank_features.state import as_items
from rerank_features.triggers import Fired, TriggerSpec
from rerank_sdk import histories
from rerank_sdk.bundle import Bundle, builtin_bundle
from rerank_sdk.decisions import DecisionLog
from rerank_sdk.explain import explain_scores
from rerank_sdk.health import Health
from rerank_sdk.histories import Histories
from rerank_sdk.memory import ItemMemory, RecentEvents
from rerank_sdk.personal import PersonalisationResult, train_patch
from rerank_sdk.policy import order_unpinned
from rerank_sdk.ranking import Ranking, Timings
from rerank_sdk.scorer import Scorer, UserPatches
from rerank_sdk.store import EventStore, Pruned, StoreLimits
from rerank_sdk.store.opening import Durability
from rerank_sdk.store.rows import check_id
from rerank_sdk.triggering import Triggers

_log = logging.getLogger("rerank_sdk")


class Reranker:
    """Re-ranks lists on the device.

    Use :meth:`open`. In the default mode :meth:`rerank` never raises for a request: whatever goes wrong inside, the
    server's order comes back with the reason.

    A restart changes no ranking, bit for bit, as long as items are known before their events and keep their fields;
    what is learned about a list that was open at the time is lost.

    Examples
    --------
    >>> import tempfile
    >>> from rerank_sdk import Event, Item, Request, Reranker
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Reranker.open(folder.name, deadline_ms=None) as reranker:
    ...     films = [Item(id=name, multi_categorical={"genres": (name,)}) for name in ("Drama", "Comedy", "Horror")]
    ...     _ = reranker.track(Event(user="u", item="Comedy", kind="like", value=5, time_ms=1_000))
    ...     ranking = reranker.rerank(Request(user="u", candidates=films, time_ms=2_000))
    >>> sorted(item.id for item in ranking.items), ranking.fallback
    (['Comedy', 'Drama', 'Horror'], None)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        store: EventStore,
        scorer: Scorer | None,
        problem: str | None,
        options: _Options,
        triggers: Triggers | None = None,
    ) -> None:
        self._triggers = triggers
        self._store = store
        self._scorer = scorer
        self._problem = problem
        self._options = options
        self._closed = False
        self._lock = threading.RLock()
        self._decisions = DecisionLog()
        self._patches = UserPatches(store, scorer.model_hash if scorer else "")
        self._recent_events = RecentEvents()
        self._items = ItemMemory(store, scorer.pipeline.spec.max_items if scorer else None)
        self._restore_items()
        self._pipeline = scorer.pipeline if scorer else None
        self._histories = Histories(store, self._pipeline, self._recent_events, self._decisions, triggers)

    @classmethod
    def open(
        cls,
        state_dir: str | Path,
        bundle: str | Path | Bundle | None = None,
        *,
        deadline_ms: float | None = 50.0,
        strict: bool = False,
        cache_dir: str | Path | None = None,
        durability: Durability = "batched",
        limits: StoreLimits | None = None,
        require_consent: bool = False,
        key: bytes | None = None,
        triggers: TriggerSpec | None = None,
        on_trigger: Callable[[Fired], object] | None = None,
    ) -> Reranker:
        """Open the state of an app, or make it.

        Parameters
        ----------
        state_dir
            Folder of the event store. Where it cannot be written, events are kept in memory; see :meth:`health`.
        bundle
            Model and features; None takes the one that comes with the package (DIN, MovieLens-100K).
        deadline_ms
            A ranking that took longer is dropped for the server's order; None waits for ever.
        strict
            Raise instead of falling back, for tests and tools.
        cache_dir
            Where machine code is kept; by default the user's cache directory.
        durability, limits, require_consent, key
            Of the event store, see :meth:`rerank_sdk.store.EventStore.open`.
        triggers, on_trigger
            Rules over tracked events, and who is called with each that fires: in the thread that tracks, when the
            event has been taken in. Give both or none. An exception of the callback is logged.

        Raises
        ------
        StoreError
            The store is damaged or of a newer version, or the folder is a file; nothing is changed.
        BundleError, ModelFileError, SpecError
            The bundle cannot be used, with ``strict``. Otherwise events are kept, and every ranking falls back.
        InputError
            The deadline is not positive, or of triggers and callback only one is given.
        """
        if deadline_ms is not None and not (isinstance(deadline_ms, int | float) and deadline_ms > 0):
            raise InputError(f"deadline_ms must be a positive number of milliseconds or None, got {deadline_ms!r}")
        if (triggers is None) != (on_trigger is None):
            raise InputError("triggers and on_trigger belong together: give both, or none")
        for name, given in (("state_dir", state_dir), ("cache_dir", cache_dir)):
            if not isinstance(given, str | Path) and (given is not None or name == "state_dir"):
                raise InputError(f"{name}: expected the path of a folder, got {type(given).__name__}")
            if "\0" in str(given):
                raise InputError(f"{name}: a path holds no NUL character, got {given!r}")
        if Path(state_dir).is_file():
            raise StoreError(f"state folder {state_dir}: it is a file; give the folder that keeps the app's state")
        store = EventStore.open(
            Path(state_dir) / "events.db",
            read_only_ok=True,
            durability=durability,
            limits=limits,
            require_consent=require_consent,
            key=key,
        )
        scorer: Scorer | None = None
        problem: str | None = None
        try:
            try:
                path = builtin_bundle() if bundle is None else bundle
                scorer = Scorer(path if isinstance(path, Bundle) else Bundle.read(path), cache_dir)
            except RerankError as error:
                if strict:
                    raise
                problem = f"{type(error).__name__}: {error}"
                _log.warning("no model, every list keeps the server's order: %s", problem)
            rules = Triggers(triggers, on_trigger) if triggers is not None and on_trigger is not None else None
            return cls(store, scorer, problem, _Options(deadline_ms, strict), rules)
        except BaseException:
            store.close()
            raise

    # --- events --------------------------------------------------------------------------------------------

    def track(self, events: Event | Iterable[Event]) -> int:
        """Take in one event, or several.

        An event that was delivered before is recognised, among the newest 100,000 events of all users, and changes
        nothing. A late event counts at its own time.

        Returns
        -------
        int
            How many events were new.

        Raises
        ------
        EventError
            Something is no event. Nothing before it is undone.
        StoreError
            The store has stopped accepting events (100,000 are waiting for a disk that refuses them).
        """
        if isinstance(events, Event):
            return self._track_one(events)
        if not isinstance(events, Iterable):
            raise EventError(f"track: expected Events, got {type(events).__name__}: build them by Event(...)")
        count = 0
        for event in events:
            if not isinstance(event, Event):
                raise EventError(f"track: expected an Event, got {type(event).__name__}: build it by Event(...)")
            count += self._track_one(event)
        return count

    def _track_one(self, event: Event) -> int:
        event.check()
        identity, user = event.identity(), event.user
        with self._lock:
            history = self._histories.current(user)
            if history is None:
                # The event must not be lost with the history. Features follow when that can be read again.
                with suppress(StoreError):
                    history = self._histories.load(user)
            if not self._recent_events.add(identity):
                return 0
            item = self._items.unsaved(event.item)
            try:
                if item is None:
                    self._store.append(event)
                else:
                    self._store.append(event, item=item)
            except BaseException:
                self._recent_events.discard(identity)
                raise
            if item is not None:
                self._items.saved(item)
            if history is not None:
                if self._pipeline is not None and self._pipeline.update(event):
                    history.in_features = True
                history.tracked += 1
                if history.tracked % histories.SAVE_EVERY_EVENTS == 0:
                    self._histories.save((user,))
            examples = self._decisions.observe(event, self._patches.base_model)
            if examples:
                self._store.save_examples(examples)
            fired = self._triggers.feed(event) if self._triggers is not None else ()
        if fired and self._triggers is not None:
            self._triggers.tell(fired)
        return 1

    def remember(self, items: Iterable[Item]) -> None:
        """Make items known that the user may meet outside a list, for example on a page of search results.

        Raises
        ------
        EventError, InputError
            An embedding has the wrong length, or something is no item.
        """
        items = as_items(items)
        with self._lock:
            if self._scorer is not None:
                self._scorer.pipeline.remember(items)
            self._items.note(items)

    # --- ranking -------------------------------------------------------------------------------------------

    def rerank(self, request: Request) -> Ranking:
        """Reorder a list for this user at this moment.

        Candidates on screen (the first ``request.shown``) and those that the user has reacted to in this list keep
        their places; the others are sorted by score. Places are those of the order that this list (same ``id``, same
        candidates) was given last; of the server's order when it is new, has changed, or the app was restarted.

        Returns
        -------
        Ranking
            With ``fallback`` set when it is the server's order.

        Raises
        ------
        EventError
            It is no request: there is no order to fall back to.
        RerankError
            Only with ``strict``.
        """
        started = perf_counter()
        if not isinstance(request, Request):
            raise EventError(f"rerank: expected a Request, got {type(request).__name__}: build it by Request(...)")
        try:
            return self._rank(request, started)
        except Exception as error:
            if self._options.strict:
                raise
            reason = f"{type(error).__name__}: {error}"
            return _server_order(request, reason, started)

    def _rank(self, request: Request, started: float) -> Ranking:
        scorer = self._scorer
        if self._triggers is not None:
            with self._lock:
                with suppress(StoreError):  # stored events come first: reading them begins the user anew
                    self._histories.load(request.user)
                self._triggers.note(request)
        if scorer is None:
            return self._fall_back(request, f"no model: {self._problem}", started)
        if not request.candidates:
            empty = np.empty(0, np.int64), np.empty(0, np.float32)
            return _ranking(request, *empty, Timings(), scorer.engine.backend)
        ids = [item.id for item in request.candidates]
        if duplicate := _first_duplicate(ids):
            return self._fall_back(request, f"candidate {duplicate!r} is in the list twice", started)
        with self._lock:
            history = self._histories.load(request.user)
            batch = scorer.pipeline.emit(request)
            self._items.note(request.candidates)
            patch = self._patches.get(request.user)
            seen = self._decisions.seen_items(request.user, request.id)
            standing = self._decisions.last_order(request.user, request.id, ids)
        features_done = perf_counter()
        base, head_input = scorer.score(batch.arrays)
        scores = base if patch is None or head_input is None else base + patch.patch.delta(head_input)
        scored = perf_counter()
        if not np.isfinite(scores).all():
            bad = request.candidates[int(np.flatnonzero(~np.isfinite(scores))[0])].id
            return self._fall_back(request, f"the model's score of candidate {bad!r} is not a finite number", started)
        order = order_unpinned(scores, _pinned(ids, request.shown, seen, standing), standing)
        deadline_ms = self._options.deadline_ms
        with self._lock:
            done = perf_counter()
            total_ms = (done - started) * 1e3
            late = deadline_ms is not None and total_ms > deadline_ms
            # Features of a user who was forgotten in the meantime must not be kept.
            kept = self._histories.is_current(request.user, history)
            if kept and head_input is not None and request.id is not None:
                shown = np.arange(len(order)) if late else order
                self._decisions.record(request.user, request.id, batch.time_ms, ids, shown, head_input, base)
        if late:
            return self._fall_back(request, f"took {total_ms:.1f} ms, the deadline is {deadline_ms:g} ms", started)
        timings = Timings(
            (features_done - started) * 1e3, (scored - features_done) * 1e3, (done - scored) * 1e3, total_ms
        )
        notes: list[str] = []
        if batch.clock_skew_ms:
            notes.append(f"the clock went back {batch.clock_skew_ms} ms; features are as of the newest event")
        return Ranking(
            items=tuple(map(request.candidates.__getitem__, order.tolist())),
            order=order,
            scores=scores[order],
            timings=timings,
            backend=scorer.engine.backend,
            notes=tuple(notes),
            patch_version=patch.version if patch is not None else 0,
            _explain=lambda: explain_scores(scorer, batch.arrays, base, scores, order),
        )

    def _fall_back(self, request: Request, reason: str, started: float) -> Ranking:
        if self._options.strict:
            raise RerankError(f"cannot re-rank: {reason}")
        return _server_order(request, reason, started)

    # --- per-user learning and privacy ---------------------------------------------------------------------

    def personalise(self, user: str) -> PersonalisationResult:
        """Learn the user's own last layer from their feedback on lists; keep it only where it helps them.

        Raises
        ------
        StoreError
            The store cannot be read, or accepts nothing more. While it cannot be written, the patch works in memory.
        """
        check_id("user", user)
        base_model = self._patches.base_model
        while True:
            with self._lock:
                history = self._histories.load(user)
            patch, result = train_patch(self._store.load_examples(user, base_model=base_model), base_model)
            with self._lock:
                if not self._histories.is_current(user, history):
                    continue  # the user was forgotten meanwhile
                version = self._patches.replace(user, patch, result)
                return replace(result, version=version)

    def forget(self, user: str) -> int:
        """Erase everything about a user, in memory and on disk.

        Returns
        -------
        int
            How many rows of the store were erased.

        Raises
        ------
        StoreError
            The file cannot be rewritten now; call again, or the next opening finishes the work.
        """
        check_id("user", user)
        with self._lock:
            self._items.erased()
            if self._scorer is not None:
                self._scorer.pipeline.forget(user)
            self._decisions.forget(user)
            self._patches.forget(user)
            self._histories.forget(user)
            if self._triggers is not None:
                self._triggers.forget(user)
            self._recent_events.forget(user)
            return self._store.forget(user)

    def export(self, user: str) -> dict[str, Any]:
        """Everything that is held about a user, ready for JSON."""
        return self._store.export(user)

    def set_consent(self, user: str | None, *, record: bool, upload: bool) -> None:
        """Keep a user's answer to whether their events may be recorded and uploaded; None stands for everyone.

        Raises
        ------
        StoreError
            The answer cannot be written.
        """
        self._store.set_consent(user, record=record, upload=upload)

    # --- state ---------------------------------------------------------------------------------------------

    def prune(self, now_ms: int) -> Pruned:
        """Erase the oldest events beyond the limits of :meth:`open`; features keep what they have counted of them.

        The states of the users concerned are saved before. Counts of everyone's events are the exception: at the next
        opening they are made anew of the events that are left.

        Parameters
        ----------
        now_ms
            The time: milliseconds since 1970, UTC.

        Raises
        ------
        StoreError
            The store cannot be written now.
        """
        if self._scorer is None:
            return self._store.prune(now_ms)
        return self._store.prune(now_ms, before_erase=self._save_states)

    def backup(self, *, now_ms: int | None = None, at_least_every_ms: int | None = None) -> Path | None:
        """Copy the store beside itself, to be restored from should it be damaged; see the store's ``backup``."""
        return self._store.backup(now_ms=now_ms, at_least_every_ms=at_least_every_ms)

    def _save_states(self, users: Iterable[str]) -> None:
        with self._lock:
            self._histories.save(users)

    def health(self) -> Health:
        """How store and model are doing."""
        engine = self._scorer.engine if self._scorer else None
        return Health(
            store=self._store.health(),
            bundle=self._scorer.bundle.name if self._scorer else None,
            backend=engine.backend if engine else "server",
            backend_reason=engine.backend_reason if engine else "no model",
            problem=self._problem,
        )

    def flush(self) -> None:
        """Return when every event so far is on disk.

        Raises
        ------
        StoreError
            It cannot be written now; it stays queued.
        """
        self._store.flush()

    def close(self) -> None:
        """Write what is pending and let go of the store. May be called twice.

        Raises
        ------
        StoreError
            It cannot be written now; the store stays open.
        """
        with self._lock:
            if not self._closed:
                self._histories.save_at_close()
            self._store.close()
            self._closed = True

    def __enter__(self) -> Reranker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _restore_items(self) -> None:
        items = self._items.stored()
        try:
            self.remember(items)
        except EventError:
            for item in items:
                try:
                    self.remember((item,))
                except EventError:  # an embedding of another bundle's length; the other fields still hold
                    self.remember((item.model_copy(update={"embedding": None}),))


class _Options:
    """How a re-ranker was opened."""

    def __init__(self, deadline_ms: float | None, strict: bool) -> None:
        self.deadline_ms = deadline_ms
        self.strict = strict


def _pinned(ids: list[str], shown: int, seen: set[str], standing: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """(N,) bool: places, in the order that stands now, whose candidates are on screen or were reacted to."""
    if not seen:
        return np.arange(len(ids)) < shown
    pinned = np.array([name in seen for name in ids], np.bool_)
    if standing is not None:
        pinned = pinned[standing]
    pinned[:shown] = True
    return pinned


def _first_duplicate(ids: list[str]) -> str | None:
    if len(set(ids)) == len(ids):
        return None
    met: set[str] = set()
    return next(name for name in ids if name in met or met.add(name))  # type: ignore[func-returns-value]


def _server_order(request: Request, reason: str, started: float) -> Ranking:
    count = len(request.candidates)
    scores = np.full(count, np.nan, np.float32) if request.scores is None else np.array(request.scores, np.float32)
    timings = Timings(total_ms=(perf_counter() - started) * 1e3)
    return _ranking(request, np.arange(count), scores, timings, "server", reason)


def _ranking(
    request: Request,
    order: NDArray[np.int64],
    scores: NDArray[np.float32],
    timings: Timings,
    backend: str,
    fallback: str | None = None,
) -> Ranking:
    return Ranking(request.candidates, order, scores, timings, backend, fallback)
