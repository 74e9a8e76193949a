"""Opening a store: the options, and what is done before the first event."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rerank_engine.errors import InputError, StoreError
from rerank_sdk.store import schema
from rerank_sdk.store.backups import drop_half_made
from rerank_sdk.store.consent import ConsentGate
from rerank_sdk.store.encryption import check_key
from rerank_sdk.store.quarantine import restore
from rerank_sdk.store.quotas import StoreLimits
from rerank_sdk.store.recorder import Durability, Recorder

OnDamage = Literal["restore", "refuse"]
"""What is done with a damaged file."""

_log = logging.getLogger("rerank_sdk.store")


@dataclass(frozen=True)
class OpenOptions:
    """The options of :meth:`rerank_sdk.store.EventStore.open`, which describes them."""

    batch_size: int
    flush_interval_ms: int
    read_only_ok: bool
    examples_per_user: int
    items_limit: int
    durability: Durability
    limits: StoreLimits
    require_consent: bool
    strict_consent: bool
    on_damage: OnDamage
    key: bytes | None = field(repr=False)

    def check(self) -> None:
        """Refuse what no option can be.

        Raises
        ------
        InputError
            An option is out of range.
        """
        for name, least in (("batch_size", 1), ("flush_interval_ms", 0), ("examples_per_user", 1), ("items_limit", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(f"{name}: expected an int of at least {least}, got {value!r}")
        if self.durability not in get_args(Durability):
            raise InputError(f"durability: expected memory, batched or fsync, got {self.durability!r}")
        if not isinstance(self.limits, StoreLimits):
            raise InputError(f"limits: expected StoreLimits, got {type(self.limits).__name__}")
        if self.on_damage not in get_args(OnDamage):
            raise InputError(f"on_damage: expected restore or refuse, got {self.on_damage!r}")
        check_key(self.key)
        for name in ("require_consent", "strict_consent"):
            if type(getattr(self, name)) is not bool:
                raise InputError(f"{name}: expected True or False, got {getattr(self, name)!r}")


def check_path(path: object, durability: Durability) -> Path:
    """The absolute path of the file.

    Raises
    ------
    InputError, StoreError
        It names no file.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise InputError(f"event store: expected the path of a file, got {path!r}")
    if not os.fspath(path) or (str(path) == ":memory:" and durability != "memory"):
        raise StoreError(
            f'event store: expected the path of a file, got {str(path)!r}: give a file, or durability="memory"'
        )
    return Path(path).absolute()


class Opened(NamedTuple):
    """The connection that writes, why it cannot write at the moment, and what was restored."""

    recorder: Recorder
    failure: str | None
    restored: str | None


def open_recorder(path: Path, options: OpenOptions, gate: ConsentGate) -> Opened:
    """Restore the file where it is damaged, open it, and finish what was interrupted.

    Raises
    ------
    StoreError
        See :meth:`rerank_sdk.store.EventStore.open`.
    """
    restored = None
    if options.durability != "memory":
        result = restore(path, options.on_damage, options.key)
        restored = None if result is None else result.text()
        drop_half_made(path)
    recorder = Recorder(
        path,
        examples_per_user=options.examples_per_user,
        items_limit=options.items_limit,
        durability=options.durability,
        gate=gate,
        key=options.key,
    )
    try:
        gate.replace(recorder.consents())
    except StoreError as error:
        if not options.read_only_ok or not schema.is_unwritable(error):
            raise
        version = schema.inspect(path, options.key)
        if 0 < version < schema.SCHEMA_VERSION:
            raise StoreError(
                f"event store {path}: its schema has version {version}, this release reads "
                f"{schema.SCHEMA_VERSION}, and the file cannot be written to migrate it: "
                "make it writable once"
            ) from error
        return Opened(recorder, str(error), restored)
    try:
        recorder.finish_erasures()
    except StoreError as error:
        _log.warning("event store: an interrupted erasure is still unfinished: %s", error)
    return Opened(recorder, None, restored)
