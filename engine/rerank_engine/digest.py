"""BLAKE2b without the rest of :mod:`hashlib`, whose import loads OpenSSL: 3 ms of a start of 5."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # another interpreter than CPython
    from hashlib import blake2b

__all__ = ["blake2b"]
