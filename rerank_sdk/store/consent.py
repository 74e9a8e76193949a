"""Who has agreed to what: recording on the device, and leaving it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from typing import NamedTuple

from rerank_engine.errors import StoreError

EVERYONE_ID = 0
"""User id of the answer for everyone; real ids begin with 1."""

_READ = "SELECT c.user_id, u.user, c.record, c.upload FROM consents c LEFT JOIN users u ON u.id = c.user_id"


class ConsentError(StoreError):
    """An event was appended whose user has not agreed to be recorded."""


class Consent(NamedTuple):
    """What a user has agreed to.

    Attributes
    ----------
    record
        Events may be recorded on the device.
    upload
        Recorded events may leave the device.
    """

    record: bool
    upload: bool


class ConsentGate:
    """The answers in memory. Asking takes no lock and reads no file.

    Parameters
    ----------
    required
        Who has not answered has not agreed.
    """

    def __init__(self, *, required: bool) -> None:
        self._unanswered = Consent(not required, not required)
        self._lock = threading.Lock()
        self._answers: dict[str | None, Consent] = {}
        self._default = self._unanswered
        self._refused = 0
        self._unstored: dict[str | None, Consent] = {}
        self.restricts = required
        """Whether anybody may be refused; while it is False, nothing else need be asked."""

    def of(self, user: str) -> Consent:
        """The user's own answer; else the answer for everyone; else what holds for who has not answered."""
        return self._answers.get(user, self._default)

    def own(self, user: str) -> Consent | None:
        """The user's own answer."""
        return self._answers.get(user)

    def replace(self, answers: Iterable[tuple[str | None, Consent]]) -> None:
        """Take all answers from the file anew; those that could not be stored yet stay."""
        with self._lock:
            self._set({**dict(answers), **self._unstored})

    def answer(self, user: str | None, consent: Consent | None, *, stored: bool = True) -> None:
        """Take one answer, or with None take it away."""
        with self._lock:
            self._unstored.pop(user, None)
            if consent is not None and not stored:
                self._unstored[user] = consent
            answers = {**self._answers}
            answers.pop(user, None)
            if consent is not None:
                answers[user] = consent
            self._set(answers)

    def _set(self, answers: dict[str | None, Consent]) -> None:
        self._default = answers.get(None, self._unanswered)
        self._answers = answers
        self.restricts = not (self._default.record and all(one.record for one in answers.values()))

    def refuse(self, count: int) -> None:
        """Count what was not recorded."""
        with self._lock:
            self._refused += count

    @property
    def refused(self) -> int:
        """How much was not recorded."""
        return self._refused


def read_consents(connection: sqlite3.Connection) -> list[tuple[str | None, Consent]]:
    """All stored answers; None stands for everyone."""
    return consents_of_rows(connection.execute(_READ).fetchall())


def consents_of_rows(rows: Iterable[tuple[int, str | None, int, int]]) -> list[tuple[str | None, Consent]]:
    """Answers from rows of ``user_id, user, record, upload``."""
    return [
        (user, Consent(bool(record), bool(upload)))
        for number, user, record, upload in rows
        if number == EVERYONE_ID or user is not None
    ]


READ_CONSENTS = _READ
