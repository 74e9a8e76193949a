"""The hash is part of every trained model: it may never change."""

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from rerank_features.hashing import bucket, hash64, signed64
from rerank_features.state import item_key


@given(st.text(), st.sampled_from(["item", "language", "größe", "f" * 64]))
def test_hash_is_keyed_blake2b_read_as_little_endian(value: str, field: str) -> None:
    raw = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8, key=field.encode()).digest()
    expected = sum(byte << (8 * i) for i, byte in enumerate(raw)) or 1
    assert hash64(field, value) == expected
    assert 0 < hash64(field, value) < 2**64


def test_known_values_stay_what_they_are() -> None:
    assert hash64("language", "en") == 6538876905668849269
    assert hash64("item", "m1") == int.from_bytes(blake2b(b"m1", digest_size=8, key=b"item").digest(), "little")
    assert bucket("language", "en", 1000) == 1 + 6538876905668849269 % 999


def test_lone_surrogates_hash_like_other_text() -> None:
    assert hash64("item", "\ud800") != hash64("item", "\ud801")


@given(st.integers(1, 2**64 - 1))
def test_signed_form_keeps_the_bits(unsigned: int) -> None:
    assert signed64(unsigned) % 2**64 == unsigned
    assert -(2**63) <= signed64(unsigned) < 2**63


@given(st.text(), st.integers(2, 2**31 - 1))
def test_buckets_leave_zero_for_missing(value: str, buckets: int) -> None:
    assert 1 <= bucket("language", value, buckets) < buckets


def test_item_keys_are_the_signed_hash_of_the_id() -> None:
    assert item_key("a") % 2**64 == hash64("item", "a")
