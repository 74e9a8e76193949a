"""What an event store owes its users and its device: consent, export, forgetting, limits."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event
from rerank_sdk.store import schema
from rerank_sdk.store.backups import Verification, backup_time_ms, drop_copies, take_backup, verify_connection
from rerank_sdk.store.consent import Consent, ConsentGate
from rerank_sdk.store.quarantine import mark_damaged
from rerank_sdk.store.quotas import Pruned, StoreLimits, prune
from rerank_sdk.store.recorder import Recorder
from rerank_sdk.store.rows import Example, QueuedItem, check_id, check_time, owner
from rerank_sdk.store.view import View
from rerank_sdk.store.writer import BatchWriter


class Keeping:
    """Part of :class:`~rerank_sdk.store.EventStore`: consent, export, forgetting, limits."""

    _writer: BatchWriter
    _recorder: Recorder
    _view: View
    _gate: ConsentGate
    _limits: StoreLimits
    _pruned: Pruned | None
    _file: Path | None
    _key: bytes | None

    @abstractmethod
    def read(self, user: str | None = None) -> Iterator[Event]:
        """See :meth:`rerank_sdk.store.EventStore.read`."""

    @abstractmethod
    def load_examples(self, user: str) -> list[Example]:
        """See :meth:`rerank_sdk.store.EventStore.load_examples`."""

    def set_consent(self, user: str | None, *, record: bool, upload: bool) -> None:
        """Store what a user has agreed to; returns when it is committed. It holds at once.

        The user's own answer counts before the answer for everyone. Events that were appended before stay; to
        withdraw them too, :meth:`forget` the user. Forgetting erases the answer with everything else: from then
        on the answer for everyone holds again. Another process learns of it with its next batch.

        Parameters
        ----------
        user
            Who; None for everyone who has not answered.
        record
            Events, training examples and states may be recorded on the device.
        upload
            ``read(purpose="upload")`` may give them out.

        Raises
        ------
        StoreError
            The answer holds for this store object, but could not be stored: set it again.
        InputError
            An argument has the wrong type.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db", require_consent=True) as store:
        ...         store.set_consent("u1", record=True, upload=False)
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         store.append(Event(user="u2", item="i7", kind="click", time_ms=0))
        ...         store.users(), store.health().without_consent, list(store.read(purpose="upload"))
        (['u1'], 1, [])
        """
        if user is not None:
            check_id("user", user)
        for name, value in (("record", record), ("upload", upload)):
            if type(value) is not bool:
                raise InputError(f"{name}: expected True or False, got {value!r}")
        consent = Consent(record, upload)
        self._gate.answer(user, consent, stored=False)
        with self._writer.paused():
            self._recorder.set_consent(user, consent)
            self._gate.answer(user, consent)

    def consent(self, user: str) -> Consent:
        """What holds for a user: the own answer, or the one for everyone.

        Raises
        ------
        InputError
            It is no id.
        """
        return self._gate.of(check_id("user", user))

    def forget(self, user: str) -> int:
        """Erase a user for good: events, patches, examples, states, requests and consent, in file and queue.

        Backups hold the user too, and single rows cannot be erased from them for good: they are erased whole,
        before the rows. Take a new one afterwards.

        The rows are deleted, the file is rewritten, and the write-ahead log is emptied, so that no old copy
        stays in any of the store's files; this takes about as long as copying the file. When the last user
        goes, the remembered items go too. What another process has queued is not known here: forget there as
        well.

        Parameters
        ----------
        user
            Who.

        Returns
        -------
        int
            How many events, patches and examples were erased, the queued ones included.

        Raises
        ------
        StoreError
            The file could not be rewritten. Calling again, or the next opening, finishes the work.
        """
        check_id("user", user)
        with self._writer.paused():
            queued = self._writer.discard(lambda operation: owner(operation) == user)
            # Copies first: an erasure that is cut off here has erased too much, not too little. And again: another
            # process may have taken a backup in between.
            if self._file is not None:
                drop_copies(self._file)
            erased = self._recorder.erase(user)
            if self._file is not None:
                drop_copies(self._file)
            self._gate.answer(user, None)
            somebody = any(owner(operation) is not None for operation in self._writer.waiting())
            if not somebody and not self._recorder.has_users():
                # The items in the file went with the last user; so do those on their way to it.
                self._writer.discard(lambda operation: isinstance(operation, QueuedItem))
            return queued + erased

    def export(self, user: str) -> dict[str, Any]:
        """Everything that is held about a user, as values that JSON knows.

        Returns
        -------
        dict
            ``user``; ``events`` as fields of :class:`~rerank_features.Event`; ``examples``; ``patches`` with
            their bytes in base64; ``states`` likewise and ``consent``, where there are any.

        Raises
        ------
        StoreError
            The file cannot be read.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         sorted(store.export("u1"))
        ['events', 'examples', 'patches', 'user']
        """
        answer = self._gate.own(check_id("user", user))
        states = sorted(self._view.states(user).items())
        return {
            "user": user,
            "events": [event.model_dump() for event in self.read(user)],
            "examples": [
                {
                    "request": example.request,
                    "item": example.item,
                    "time_ms": example.time_ms,
                    "label": example.label,
                    "features": example.features.tolist(),
                    "base_model": example.base_model,
                }
                for example in self.load_examples(user)
            ],
            "patches": [
                {**patch._asdict(), "patch": base64.b64encode(patch.patch).decode()}
                for patch in self._view.patches(user)
            ],
            **(
                {
                    "states": [
                        {
                            "spec_hash": spec_hash,
                            "last_row": state.last_row,
                            "state": base64.b64encode(state.state).decode(),
                        }
                        for spec_hash, state in states
                    ]
                }
                if states
                else {}
            ),
            **({"consent": answer._asdict()} if answer else {}),
        }

    def prune(
        self,
        now_ms: int,
        *,
        limits: StoreLimits | None = None,
        before_erase: Callable[[tuple[str, ...]], object] | None = None,
    ) -> Pruned:
        """Erase the oldest events until the store is within its limits, and give the space back.

        Age is told by the events' own times; where rows or bytes are too many, those that arrived first go. The
        work is done in small transactions, so that appending goes on meanwhile. A state whose tail goes is
        dropped, because it could never be brought up to date again.

        Parameters
        ----------
        now_ms
            The time, as the app sees it: milliseconds since 1970, UTC.
        limits
            Other limits than those of :meth:`open`.
        before_erase
            Called with the users whose events are about to go, so that their states can be saved by
            :meth:`save_state`. With it, no event goes that no sound state of its user holds; where the limits
            cannot be kept so, the result and :meth:`health` say by how much.

        Raises
        ------
        StoreError
            The file cannot be written. What went before stays gone.
        InputError
            The time or the limits are none.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore, StoreLimits
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "events.db"
        ...     with EventStore.open(path, limits=StoreLimits(max_rows=2)) as store:
        ...         store.append_many([Event(user="u1", item=f"i{n}", kind="click", time_ms=n) for n in range(5)])
        ...         store.prune(10).rows, [event.item for event in store.read("u1")]
        (3, ['i3', 'i4'])
        """
        chosen = self._limits if limits is None else limits
        if not isinstance(chosen, StoreLimits):
            raise InputError(f"limits: expected StoreLimits, got {type(chosen).__name__}")
        self._pruned = prune(self._recorder, self._writer, chosen, now_ms, before_erase)
        return self._pruned

    def verify(self) -> Verification:
        """Check the whole file: pages, indices, and the checksum of every event and state.

        Where anything is found, a mark is left, and the next opening restores the file: from the backup, with
        every readable row of this one. Takes about as long as reading the file twice.

        Raises
        ------
        StoreError
            The file cannot be opened at all.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         store.verify()
        Verification(events=1, damaged_events=0, damaged_states=0, problems=())
        """
        self._writer.try_flush()
        if self._file is None:
            with self._recorder.lock:
                return verify_connection(self._recorder.connect())
        with closing(schema.connect_reader(self._file, self._key)) as connection:
            found = verify_connection(connection)
        if not found.sound:
            mark_damaged(self._file)
        return found

    def backup(self, *, now_ms: int | None = None, at_least_every_ms: int | None = None) -> Path | None:
        """Copy the store to ``<name>.backup`` beside it; the copy is checked before it replaces the older one.

        Appending waits meanwhile in the queue. Forgetting a user erases the backup.

        Parameters
        ----------
        now_ms
            The time, as the app sees it: milliseconds since 1970, UTC; kept in the backup.
        at_least_every_ms
            Do nothing while the backup is younger than this. Needs `now_ms`.

        Returns
        -------
        Path or None
            The backup; None where the older one is young enough.

        Raises
        ------
        StoreError
            It could not be taken, or a user was forgotten by another process meanwhile; or the store has no file.
        InputError
            An argument is no time.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         taken = store.backup(now_ms=1_000_000, at_least_every_ms=60_000)
        ...         again = store.backup(now_ms=1_010_000, at_least_every_ms=60_000)
        ...         taken.name, again
        ('events.db.backup', None)
        """
        if now_ms is not None:
            check_time(now_ms, "now_ms")
        if at_least_every_ms is not None and (
            now_ms is None or type(at_least_every_ms) is not int or at_least_every_ms < 0
        ):
            raise InputError(
                f"at_least_every_ms: expected milliseconds from 0 on, together with now_ms, got {at_least_every_ms!r}"
            )
        if self._file is None:
            raise StoreError('event store: there is no file to back up: open it with durability="batched"')
        if now_ms is not None and at_least_every_ms is not None:
            taken_ms = backup_time_ms(self._file, self._key)
            # A backup from the future tells that the clock was set back.
            if taken_ms is not None and 0 <= now_ms - taken_ms < at_least_every_ms:
                return None
        self._writer.flush()
        with self._writer.paused(), self._recorder.lock:
            return take_backup(self._recorder.connect(), self._file, now_ms, self._key)
