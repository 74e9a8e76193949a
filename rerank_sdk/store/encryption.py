"""Encrypted files: SQLCipher behind the face of ``sqlite3``: the store knows one kind of connection and error."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from rerank_engine.errors import InputError, StoreError

KEY_LENGTH = 32
"""Bytes of a key."""

_Result = TypeVar("_Result")


def check_key(key: object) -> bytes | None:
    """Return `key` if it can be one; None stands for a plain file.

    Raises
    ------
    InputError
        It is not 32 bytes.
    StoreError
        The extra is not installed.
    """
    if key is None:
        return None
    if not isinstance(key, bytes) or len(key) != KEY_LENGTH:
        came = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InputError(f"key: expected {KEY_LENGTH} random bytes, got {came}: take them from the system's key store")
    _driver()
    return key


def connect(target: str, key: bytes | None, **options: Any) -> sqlite3.Connection:
    """Open a SQLite file, with a key an encrypted one. Nothing is read yet, so a wrong key is noticed later."""
    if key is None:
        return sqlite3.connect(target, **options)
    factory = _connection_class()
    try:
        connection: sqlite3.Connection = _driver().connect(target, factory=factory, **options)
    except _driver().Error as error:
        raise _translated(error) from error
    connection.execute("PRAGMA cipher_log_level = NONE")  # it would write to stderr of the app
    connection.execute(f"PRAGMA key = \"x'{key.hex()}'\"")
    return connection


@functools.cache
def _driver() -> Any:
    try:
        from sqlcipher3 import dbapi2
    except ImportError:
        raise StoreError(
            "event store: encryption needs an extra that is not installed: pip install 'rerank-sdk[encrypted]'"
        ) from None
    return dbapi2


def _translated(error: Exception) -> sqlite3.Error:
    """The same error as ``sqlite3`` would raise it, with SQLite's code."""
    kind = getattr(sqlite3, type(error).__name__, sqlite3.DatabaseError)
    translated: sqlite3.Error = kind(str(error))
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        translated.sqlite_errorcode = code
        translated.sqlite_errorname = getattr(error, "sqlite_errorname", "")
    return translated


def _translating(method: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> _Result:
        try:
            return method(*arguments, **options)
        except _driver().Error as error:
            raise _translated(error) from error

    return call


@functools.cache
def _connection_class() -> Any:
    driver = _driver()

    statements = ("execute", "executemany", "executescript")
    cursor_class = _subclass(driver.Cursor, (*statements, "fetchone", "fetchmany", "fetchall", "__next__"))

    def cursor(connection: Any, factory: Any = cursor_class) -> Any:
        return driver.Connection.cursor(connection, factory)

    return _subclass(driver.Connection, (*statements, "backup", "commit", "rollback"), cursor=cursor)


def _subclass(base: Any, methods: tuple[str, ...], **more: Any) -> Any:
    """The class with methods whose errors are those of ``sqlite3``."""
    return type(base.__name__, (base,), {**{name: _translating(getattr(base, name)) for name in methods}, **more})
