"""How the store is doing, as an app sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StoreHealth:
    """How the store is doing.

    Attributes
    ----------
    path
        The store's file.
    writable
        Whether the last attempt to write succeeded; opening counts as one.
    pending
        Operations that wait to be written.
    written
        Events that this store object has written.
    duplicates
        Events that were delivered again, and ignored.
    rejected
        Events that were accepted but break the rules of the border (made by ``model_construct``); they are
        dropped.
    last_error
        Why the last attempt to write failed; None after a success.
    schema_version
        Version of the tables.
    damaged
        Rows that were met and do not agree with their checksums; they are left out of every answer.
    durability
        The level that was chosen at opening.
    without_consent
        Events and examples that were not recorded, because their user has not agreed.
    over_rows, over_bytes
        By how much the last :meth:`~rerank_sdk.store.EventStore.prune` missed the limits, because what was left
        is in no saved state yet.
    restored
        What happened where opening found the file damaged; None where it was sound.
    """

    path: str
    writable: bool
    pending: int
    written: int
    duplicates: int
    rejected: int
    last_error: str | None
    schema_version: int
    damaged: int = 0
    durability: str = "batched"
    without_consent: int = 0
    over_rows: int = 0
    over_bytes: int = 0
    restored: str | None = None
