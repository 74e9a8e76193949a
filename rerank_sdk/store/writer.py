"""Background batching: appending costs a queue entry, a thread takes the batches to the file.

Nothing leaves the queue before it is committed. A batch that fails stays at the head of the queue, is tried
again with growing pauses, and is visible to readers in the meantime through :meth:`BatchWriter.waiting`.

Appending takes no lock: the end of a deque may grow at any moment. Only holders of the lock take from its head,
so that what was added up to now is what is settled plus what waits. What is discarded in the middle becomes a
hole (None), because moving the rest could lose what is appended meanwhile.
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
_NEVER = 1 << 62
_NOTHING = Outcome(0, 0, 0)
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
        self._queue: deque[Operation | None] = deque()
        self._holes = 0
        self._settled = 0
        self._refusal: str | None = None
        self._failing = failure is not None
        self._last_error = failure
        self._written = self._duplicates = self._rejected = 0
        self._at_end: Callable[[], None] | None = None
        self._make_locks()
        self._thread = threading.Thread(target=self._run, name="rerank-event-store", daemon=True)
        self._thread.start()

    def _make_locks(self) -> None:
        # `_lock` guards the head of the queue and is held for an instant; reentrant, because a garbage collection
        # inside may run a finaliser that appends. `_write_lock` is held by whoever works on the file.
        self._lock = threading.RLock()
        self._write_lock = threading.Lock()
        self._bell = threading.Event()  # rung when `_ring_at` operations wait
        self._ring_at = _NEVER
        self._stop = threading.Event()

    def add(self, operation: Operation) -> None:
        """Queue one operation.

        Raises
        ------
        StoreError
            Too much is waiting already, or the store is closed: the operation was not accepted.
        """
        queue = self._queue
        if self._refusal is not None or len(queue) - self._holes >= self._limit:
            raise self._refused(1)
        queue.append(operation)
        # Signals cost microseconds and make the writer compete for the interpreter: only when it waits for one.
        if len(queue) >= self._ring_at:
            self._bell.set()
        if self._refusal is not None:
            self._take_back(operation)

    def _take_back(self, operation: Operation) -> None:
        """The store was closed while an operation was appended: it is refused, unless it was written after all."""
        with self._lock:
            for place in range(len(self._queue) - 1, -1, -1):
                if self._queue[place] is operation:
                    self._queue[place] = None
                    self._holes += 1
                    raise StoreError(str(self._refusal))

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
            if self._refusal is not None or len(self._queue) - self._holes + len(operations) > self._limit:
                raise self._refused(len(operations))
            self._queue.extend(operations)
        if len(self._queue) >= self._ring_at:
            self._bell.set()

    def _refused(self, count: int) -> StoreError:
        if self._refusal is not None:
            return StoreError(self._refusal)
        reason = f": {self._last_error}" if self._last_error else ""
        return StoreError(
            f"{count} operations not accepted: {len(self._queue) - self._holes} wait to be written and at most "
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
            target = self._settled + len(self._queue)
        self._drain(target)

    def try_flush(self) -> bool:
        """Flush, and say whether it succeeded; a file that failed last time is not waited for."""
        if self._failing and self._refusal is None:
            return len(self._queue) == self._holes
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
            return [operation for operation in list(self._queue) if operation is not None]

    def state(self) -> WriterState:
        """Counters of this writer, taken at one moment."""
        with self._lock:
            return WriterState(
                self._failing,
                len(self._queue) - self._holes,
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
            found = [
                place
                for place, operation in enumerate(list(self._queue))
                if operation is not None and chosen(operation)
            ]
            for place in found:
                self._queue[place] = None
            self._holes += len(found)
        return len(found)

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
            self._drain(self._settled + len(self._queue))
        except StoreError as error:
            if not discard:
                with self._lock:
                    self._refusal = None
                raise
            _log.warning("event store: %d operations are lost at closing: %s", self.state().pending, error)
        self._stop.set()
        self._bell.set()
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
        self._bell.set()
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

    def _drain(self, target: int) -> None:
        """Write batches until `target` operations are settled."""
        with self._write_lock:
            while self._settled < target:
                with self._lock:
                    taken = list(islice(self._queue, _TRANSACTION_ROWS))
                batch = [operation for operation in taken if operation is not None]
                try:
                    outcome = self._write(batch) if batch else _NOTHING
                except StoreError as error:
                    self._failed(str(error))
                    raise
                except Exception as error:  # whatever it is: the batch stays, and the caller gets one kind of error
                    message = f"event store: cannot write {len(batch)} rows ({type(error).__name__}: {error})"
                    self._failed(message)
                    raise StoreError(message) from error
                with self._lock:
                    for _ in taken:
                        self._queue.popleft()
                    self._settled += len(taken)
                    self._holes -= len(taken) - len(batch)
                    self._written += outcome.written
                    self._duplicates += outcome.duplicates
                    self._rejected += outcome.rejected
                    self._failing = False
                    self._last_error = None

    def _failed(self, message: str) -> None:
        with self._lock:
            first = not self._failing
            self._failing = True
            self._last_error = message
            waiting = len(self._queue) - self._holes
        if first:
            _log.warning("event store: %d operations wait, writing failed: %s", waiting, message)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            self._wait_for(1, None)
            self._wait_for(self._batch_size, self._interval_s)  # let a batch gather
            if self._stop.is_set():
                break
            try:
                self._drain(self._settled + len(self._queue))
                pause_s = 0.0
            except StoreError:
                pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._stop.wait(pause_s)
        if self._at_end is not None:
            self._at_end()

    def _wait_for(self, count: int, limit_s: float | None) -> None:
        """Sleep until so many operations wait, the time is over, or the end is asked for."""
        self._bell.clear()
        self._ring_at = count
        # Looked at after the threshold is set: whoever appended before it was seen here, whoever comes later rings.
        if len(self._queue) < count and not self._stop.is_set():
            self._bell.wait(limit_s)
        self._ring_at = _NEVER
