"""What an event store keeps beside events: training examples, patches, feature states and remembered items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rerank_engine.errors import InputError, StoreError
from rerank_features.events import Event, Item
from rerank_sdk.store.consent import ConsentGate
from rerank_sdk.store.rows import (
    Example,
    QueuedItem,
    QueuedPatch,
    QueuedState,
    StoredPatch,
    StoredState,
    check_id,
    check_time,
)
from rerank_sdk.store.view import UNSTORED, View
from rerank_sdk.store.writer import BatchWriter


class PersonalRows:
    """Part of :class:`~rerank_sdk.store.EventStore`: everything but events."""

    _writer: BatchWriter
    _view: View
    _gate: ConsentGate

    def append_example(self, example: Example) -> None:
        """Take a training example, like :meth:`append`. One with the same user, request and item is replaced.

        Raises
        ------
        StoreError
            Not accepted: see :meth:`append`.
        InputError
            It is no example.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore, Example
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append_example(Example("u1", "r1", "i7", 0, 1.0, [0.5], "sha256:ab"))
        ...         [example.label for example in store.load_examples("u1")]
        [1.0]
        """
        self.save_examples((example,))

    def save_examples(self, examples: Iterable[Example]) -> None:
        """Take several training examples, all or none; see :meth:`append_example`.

        Raises
        ------
        StoreError, InputError
            See :meth:`append_example`.
        """
        queued = list(examples)
        for example in queued:
            if not isinstance(example, Example):
                raise InputError(f"examples: expected Example, got {type(example).__name__}: build Example(...)")
        if self._gate.restricts:
            agreed = [example for example in queued if self._gate.of(example.user).record]
            self._gate.refuse(len(queued) - len(agreed))
            queued = agreed
        self._writer.add_many(queued)

    def load_examples(self, user: str, *, base_model: str | None = None) -> list[Example]:
        """The user's training examples, by time.

        Parameters
        ----------
        user
            Whose.
        base_model
            Only examples whose features belong to this model.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        examples = self._view.examples(check_id("user", user))
        return [example for example in examples if base_model is None or example.base_model == base_model]

    def save_patch(self, user: str, patch: bytes, *, version: int, base_model: str, created_ms: int) -> None:
        """Keep a patch; returns when it is committed. The three newest versions of a user are kept.

        Parameters
        ----------
        user
            Whose.
        patch
            The bytes.
        version
            Larger than that of any kept patch; the newest version itself may be saved again and is replaced.
        base_model
            Content hash of the model that the patch belongs to.
        created_ms
            When it was trained: milliseconds since 1970, UTC.

        Raises
        ------
        StoreError
            An older version than the newest was given; or it cannot be committed: then it stays queued,
            :meth:`load_patch` sees it already, and it is written as soon as the file can be.
        InputError
            An argument has the wrong type or range.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.save_patch("u1", b"delta", version=1, base_model="sha256:ab", created_ms=0)
        ...         store.load_patch("u1")
        StoredPatch(patch=b'delta', version=1, base_model='sha256:ab', created_ms=0)
        """
        check_id("user", user)
        check_id("base_model", base_model)
        check_time(created_ms, "created_ms")
        if not isinstance(patch, bytes):
            raise InputError(f"patch: expected bytes, got {type(patch).__name__}")
        if type(version) is not int or not 0 <= version < 1 << 63:
            raise InputError(f"version: expected an int from 0 on, got {version!r}")
        kept = self.load_patch(user)
        if kept is not None and version < kept.version:
            raise StoreError(
                f"patch version {version} is older than version {kept.version}, which is kept: "
                "save it under a larger number"
            )
        self._writer.add(QueuedPatch(user, patch, version, base_model, created_ms))
        self._writer.flush()

    def load_patch(self, user: str, *, version: int | None = None) -> StoredPatch | None:
        """The user's newest patch, or the one of a version; None where there is none.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        kept = self._view.patches(check_id("user", user))
        if version is not None:
            kept = [patch for patch in kept if patch.version == version]
        return kept[-1] if kept else None

    def patch_versions(self, user: str) -> list[int]:
        """Versions of the user's patches that are kept, ascending.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return [patch.version for patch in self._view.patches(check_id("user", user))]

    def save_items(self, rows: Iterable[Item | tuple[str, bytes]]) -> None:
        """Remember items, so that their fields survive a restart; written like events; a newer text replaces.

        Parameters
        ----------
        rows
            Items, which the writer turns into JSON text later, or pairs of an id and the JSON text as bytes.

        Raises
        ------
        StoreError
            Not accepted: see :meth:`append`.
        InputError
            A row has the wrong type.
        """
        queued = []
        for row in rows:
            if isinstance(row, Item):
                queued.append(QueuedItem(row.id, row))
                continue
            item, fields = row
            check_id("item", item)
            if not isinstance(fields, bytes):
                raise InputError(f"fields: expected the JSON text of the item as bytes, got {type(fields).__name__}")
            queued.append(QueuedItem(item, fields))
        self._writer.add_many(queued)

    def load_items(self) -> dict[str, bytes]:
        """Remembered items: id to the JSON text of the item.

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
        ...         store.save_items([("i7", b'{"id":"i7"}')])
        ...         store.load_items()
        {'i7': b'{"id":"i7"}'}
        """
        return self._view.items()

    def save_state(self, user: str, spec_hash: str, last_row: int, state: bytes) -> None:
        """Keep a user's feature state; written like events, and never before the events that it holds.

        A user has one state for each spec. States of the two newest specs are kept.

        Parameters
        ----------
        user
            Whose.
        spec_hash
            Hash of the spec whose state it is.
        last_row
            Row of the last event that went into the state: from :meth:`last_row` or :meth:`read_after`.
        state
            The bytes.

        Raises
        ------
        StoreError
            Not accepted: see :meth:`append`.
        InputError
            An argument has the wrong type or range, or the row is not in the file yet.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from rerank_sdk.store import EventStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
        ...         store.append(Event(user="u1", item="i7", kind="click", time_ms=0))
        ...         store.save_state("u1", "spec-1", store.last_row("u1"), b"numbers")
        ...         store.append(Event(user="u1", item="i8", kind="click", time_ms=1))
        ...         saved = store.load_state("u1", "spec-1")
        ...         saved.state, [event.item for _, event in store.read_after("u1", saved.last_row)]
        (b'numbers', ['i8'])
        """
        check_id("user", user)
        check_id("spec_hash", spec_hash)
        if type(last_row) is not int or last_row < 0:
            raise InputError(f"last_row: expected a row number from 0 on, got {last_row!r}")
        if last_row >= UNSTORED:
            raise InputError("last_row: this event is not in the file yet: save the state after flush() succeeds")
        if not isinstance(state, bytes):
            raise InputError(f"state: expected bytes, got {type(state).__name__}")
        if self._gate.restricts and not self._gate.of(user).record:
            self._gate.refuse(1)
            return
        self._writer.add(QueuedState(user, spec_hash, last_row, state))

    def load_state(self, user: str, spec_hash: str) -> StoredState | None:
        """The user's feature state for a spec; None where there is none, or where it is damaged.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return self._view.states(check_id("user", user)).get(check_id("spec_hash", spec_hash))

    def last_row(self, user: str) -> int:
        """Number of the user's last event in the file, 0 where there is none. Numbers grow and never come back.

        Raises
        ------
        StoreError
            The file cannot be read.
        """
        return self._view.last_row(check_id("user", user))

    def read_after(self, user: str, row: int) -> Iterator[tuple[int, Event]]:
        """Stream the user's events behind a row, in order of arrival, each with its row.

        Events that wait for a disk that refuses them come last, with numbers that :meth:`save_state` refuses.

        Raises
        ------
        StoreError
            The file cannot be read.
        InputError
            The row is no number from 0 on.
        """
        if type(row) is not int or row < 0:
            raise InputError(f"row: expected a row number from 0 on, got {row!r}")
        return self._rows_while_open(self._view.events_after(check_id("user", user), row))

    def _rows_while_open(self, rows: Iterator[tuple[int, Event]]) -> Iterator[tuple[int, Event]]:
        # A method, so that the iterator holds the store, and the store is not finalised under it.
        yield from rows
