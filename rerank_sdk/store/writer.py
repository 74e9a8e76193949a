"""Background batching: appending costs a lock and a queue entry, a thread takes the batches to the file.

Nothing leaves the queue before it is committed. A batch that fails stays at the head of the queue, is tried
again with growing pauses, and is visible to readers in the meantime through :meth:`BatchWriter.waiting`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from rerank_engine.errors import StoreError
from rerank_sdk.store.recorder import Outcome
from rerank_sdk.store.rows import Operation

_log = logging.getLogger("rerank_sdk.store")

PENDING_LIMIT = 100_000
"""So many operations may wait; past that, appending is refused."""

_TRANSACTION_ROWS = 4_096
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_CLOSED = "the event store is closed: open it again"
FORKED = "the event store was opened before this process was forked: open it again in each process"


class WriterState(NamedTuple):
    """What the writer knows about itself."""

    failing: bool
    pending: int
    written: int
    duplicates: int
    rejected: int
    last_error: str | None


class BatchWriter:
    """A queue of operations, and the thread that empties it.

    Parameters
    ----------
    write
        Writes a batch, all of it or nothing; raises StoreError for nothing.
    batch_size
        A batch is written as soon as so many operations wait.
    flush_interval_ms
        A smaller batch is written after this time.
    failure
        Why nothing can be written at the start, or None.
    limit
        So many operations may wait.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Operation]], Outcome],
        *,
        batch_size: int,
        flush_interval_ms: int,
        failure: str | None = None,
        limit: int = PENDING_LIMIT,
    ) -> None:
        self._write = write
        self._batch_size = batch_size
        self._interval_s = flush_interval_ms / 1_000
        self._limit = limit
        self._queue: deque[Operation] = deque()
        self._refusal: str | None = None
        self._failing = failure is not None
        self._last_error = failure
        self._added = 0
        self._written = self._duplicates = self._rejected = 0
        self._at_end: Callable[[], None] | None = None
        self._make_locks()
        self._thread = threading.Thread(target=self._run, name="rerank-event-store", daemon=True)
        self._thread.start()

    def _make_locks(self) -> None:
        # `_lock` guards the queue and is held for an instant; reentrant, because a garbage collection inside
        # may run a finaliser that appends. `_write_lock` is held by whoever works on the file.
        self._lock = threading.RLock()
        self._write_lock = threading.Lock()
        self._wake = threading.Event()  # set while something waits
        self._full = threading.Event()  # set while a whole batch waits
        self._stop = threading.Event()

    def add(self, operation: Operation) -> None:
        """Queue one operation.

        Raises
        ------
        StoreError
            Too much is waiting already, or the store is closed: the operation was not accepted.
        """
        with self._lock:
            waiting = len(self._queue)
            if self._refusal is not None or waiting >= self._limit:
                raise self._refused(1)
            self._queue.append(operation)
            self._added += 1
            if not waiting:
                self._wake.set()
            if waiting + 1 == self._batch_size:
                self._full.set()

    def add_many(self, operations: Sequence[Operation]) -> None:
        """Queue all operations or none.

        Raises
        ------
        StoreError
            See :meth:`add`.
        """
        if not operations:
            return
        with self._lock:
            waiting = len(self._queue)
            if self._refusal is not None or waiting + len(operations) > self._limit:
                raise self._refused(len(operations))
            self._queue.extend(operations)
            self._added += len(operations)
            # Signals cost microseconds and make the writer compete for the interpreter: only when they tell something.
            if not waiting:
                self._wake.set()
            if waiting < self._batch_size <= len(self._queue):
                self._full.set()

    def _refused(self, count: int) -> StoreError:
        if self._refusal is not None:
            return StoreError(self._refusal)
        reason = f": {self._last_error}" if self._last_error else ""
        return StoreError(
            f"{count} operations not accepted: {len(self._queue)} wait to be written and at most "
            f"{self._limit} may{reason}: make the file writable, or append more slowly"
        )

    def flush(self) -> None:
        """Return when everything that was added before is committed.

        Raises
        ------
        StoreError
            It could not be; it stays queued and is tried again.
        """
        with self._lock:
            self._check_alive()
            target = self._added
        self._drain(target)

    def try_flush(self) -> bool:
        """Flush, and say whether it succeeded; a file that failed last time is not waited for."""
        if self._failing and self._refusal is None:
            return not self._queue
        try:
            self.flush()
        except StoreError:
            if self._refusal is not None:
                raise
            return False
        return True

    def waiting(self) -> list[Operation]:
        """What is queued, in order. An operation in it may be committed at the same moment."""
        with self._lock:
            return list(self._queue)

    def state(self) -> WriterState:
        """Counters of this writer, taken at one moment."""
        with self._lock:
            return WriterState(
                self._failing,
                len(self._queue),
                self._written,
                self._duplicates,
                self._rejected,
                self._last_error,
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, no batch is written; the connection belongs to the caller.

        Raises
        ------
        StoreError
            The store is closed.
        """
        with self._write_lock:
            with self._lock:
                self._check_alive()
            yield

    def discard(self, chosen: Callable[[Operation], bool]) -> int:
        """Take the chosen operations out of the queue; only inside :meth:`paused`. Returns how many."""
        with self._lock:
            kept = [operation for operation in self._queue if not chosen(operation)]
            count = len(self._queue) - len(kept)
            self._queue.clear()
            self._queue.extend(kept)
            self._mark()
        return count

    def close(self, *, discard: bool = False) -> None:
        """Write what waits, refuse what comes, end the thread. Closing again does nothing.

        Parameters
        ----------
        discard
            Close even when not everything can be written.

        Raises
        ------
        StoreError
            Not everything could be written, and nothing is to be discarded: the writer stays open.
        """
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = _CLOSED
        try:
            self._drain(self._added)
        except StoreError as error:
            if not discard:
                with self._lock:
                    self._refusal = None
                raise
            _log.warning("event store: %d operations are lost at closing: %s", len(self._queue), error)
        self._stop.set()
        self._wake.set()
        self._full.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_after_thread(self, at_end: Callable[[], None]) -> bool:
        """Asked by the writer's own thread, let it end, and run `at_end` as its last act.

        The garbage collector may finalise a store in any thread, also in this one in the middle of a batch.
        """
        if threading.current_thread() is not self._thread:
            return False
        self._at_end = at_end
        self._stop.set()
        return True

    def abandon(self) -> None:
        """In a forked child: the thread does not exist here, and the connection is the parent's."""
        self._make_locks()
        self._refusal = FORKED

    @property
    def abandoned(self) -> bool:
        """Whether this is a forked child's copy."""
        return self._refusal is FORKED

    def _check_alive(self) -> None:
        if self._refusal is not None:
            raise StoreError(self._refusal)

    def _mark(self) -> None:
        if not self._queue:
            self._wake.clear()
        if len(self._queue) < self._batch_size:
            self._full.clear()

    def _drain(self, target: int) -> None:
        """Write batches until `target` operations are settled."""
        with self._write_lock:
            while self._added - len(self._queue) < target:
                with self._lock:
                    batch = list(islice(self._queue, _TRANSACTION_ROWS))
                try:
                    outcome = self._write(batch)
                except StoreError as error:
                    self._failed(str(error))
                    raise
                except Exception as error:  # whatever it is: the batch stays, and the caller gets one kind of error
                    message = f"event store: cannot write {len(batch)} rows ({type(error).__name__}: {error})"
                    self._failed(message)
                    raise StoreError(message) from error
                with self._lock:
                    for _ in batch:
                        self._queue.popleft()
                    self._written += outcome.written
                    self._duplicates += outcome.duplicates
                    self._rejected += outcome.rejected
                    self._failing = False
                    self._last_error = None
                    self._mark()

    def _failed(self, message: str) -> None:
        with self._lock:
            first = not self._failing
            self._failing = True
            self._last_error = message
            waiting = len(self._queue)
        if first:
            _log.warning("event store: %d operations wait, writing failed: %s", waiting, message)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            self._wake.wait()
            self._full.wait(self._interval_s)  # let a batch gather
            if self._stop.is_set():
                break
            try:
                self._drain(self._added)
                pause_s = 0.0
            except StoreError:
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._stop.wait(pause_s)
        if self._at_end is not None:
            self._at_end()
