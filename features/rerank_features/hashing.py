"""The 64-bit hash under which words become numbers: the same on every machine, in training and in production.

A value's hash is the first 8 bytes of BLAKE2b [1]_ over its UTF-8 bytes, keyed by the field name's UTF-8
bytes and read as a little-endian unsigned integer. The key keeps equal words of different fields apart.
Zero is reserved for "missing", so the one value in 2**64 that hashes to zero counts as one.

References
----------
.. [1] RFC 7693, The BLAKE2 Cryptographic Hash and Message Authentication Code.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from unicodedata import normalize

ITEM_FIELD = "item"
"""Field name under which item ids are hashed."""

MAX_FIELD_BYTES = 64
"""Longest field name in UTF-8 bytes: the longest key of BLAKE2b."""


def hash64(field: str, value: str) -> int:
    """Hash one value of a field.

    Parameters
    ----------
    field
        Name of the field, at most 64 bytes of UTF-8.
    value
        The value.

    Returns
    -------
    int
        From 1 to 2**64 - 1.

    Examples
    --------
    >>> hash64("language", "en")
    6538876905668849269
    >>> hash64("language", "en") == hash64("country", "en")
    False
    """
    # "surrogatepass": a lone surrogate in an id is odd, but two such ids are still different ids.
    raw = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8, key=field.encode()).digest()
    return int.from_bytes(raw, "little") or 1


def signed64(unsigned: int) -> int:
    """Reinterpret an unsigned 64-bit number as the signed one with the same bits.

    Examples
    --------
    >>> signed64(2**64 - 1), signed64(5)
    (-1, 5)
    """
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def signed_hash(field: str, value: str) -> int:
    """The hash of one value of a field as a signed number, as state and kernels hold it; never 0.

    Examples
    --------
    >>> signed_hash("language", "en") % 2**64 == hash64("language", "en")
    True
    """
    return signed64(hash64(field, value))


def fact_text(value: str | float) -> str:
    """A fact of the context as a word: numbers and booleans as their JSON text, the same in every language.

    Examples
    --------
    >>> fact_text("phone"), fact_text(True), fact_text(1.5)
    ('phone', 'true', '1.5')
    """
    return value if isinstance(value, str) else json.dumps(value)


def words_of(text: str) -> list[str]:
    """Different words of a text in their order: compatibility forms unified (NFKC), case folded, letters and digits.

    Examples
    --------
    >>> words_of("The cat, the CAT\u2019s 2nd hat")
    ['the', 'cat', 's', '2nd', 'hat']
    """
    return list(dict.fromkeys(re.findall(r"\w+", normalize("NFKC", text).casefold())))


def bucket(field: str, value: str, buckets: int) -> int:
    """Id of a value in a hashed embedding table: ``1 + hash64 % (buckets - 1)``; 0 stays for "missing".

    Examples
    --------
    >>> bucket("language", "en", 1000)
    116
    """
    return 1 + hash64(field, value) % (buckets - 1)
