"""Mathematical constants to any number of bits, as exact fractions, and their parts for exact products.

Nothing here is a copied digit: the constants are series of whole numbers, so a wrong one is a wrong formula.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

_GUARD_BITS = 32


@cache
def natural_logarithm_of_two(bits: int) -> Fraction:
    """Ln 2 with an error below ``2**-bits``, by ``2 artanh(1/3)``.

    >>> float(natural_logarithm_of_two(100))
    0.6931471805599453
    """
    scale = bits + _GUARD_BITS
    return Fraction(2 * _inverse_odd_series(3, scale, alternating=False), 1 << scale)


@cache
def pi(bits: int) -> Fraction:
    """The circle constant with an error below ``2**-bits``, by Machin's ``16 arctan(1/5) - 4 arctan(1/239)``.

    >>> float(pi(100))
    3.141592653589793
    """
    scale = bits + _GUARD_BITS
    fifth = _inverse_odd_series(5, scale, alternating=True)
    return Fraction(16 * fifth - 4 * _inverse_odd_series(239, scale, alternating=True), 1 << scale)


def pieces(value: Fraction, bits: tuple[int, ...]) -> tuple[float, ...]:
    """Floats that add up to ``value``: one of each given number of significant bits, then the rest.

    A piece of few bits times a small whole number is exact, with and without fused multiply-add.

    >>> high, low = pieces(Fraction(2, 3), (20,))
    >>> high * 2**20, abs(high + low - 2 / 3) < 1e-16
    (699050.0, True)
    """
    result = []
    for count in bits:
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        unit = Fraction(2) ** (exponent - count)
        piece = value // unit * unit
        result.append(float(piece))
        value -= piece
    return (*result, float(value))


def _inverse_odd_series(base: int, scale: int, *, alternating: bool) -> int:
    """``2**scale`` times the sum of ``±(1/base)**(2 i + 1) / (2 i + 1)``: artanh, or arctan when alternating."""
    power = (1 << scale) // base
    total, index = 0, 0
    while power:
        term = power // (2 * index + 1)
        total += -term if alternating and index % 2 else term
        power //= base * base
        index += 1
    return total
