"""Numbers and texts at which readers break."""

from __future__ import annotations

import math
from random import Random

SMALL: tuple[int, ...] = (-7, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 65)
LARGE: tuple[int, ...] = (
    *(127, 128, 255, 256, 1000, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**24, 2**28, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**40, 2**48 + 1, 2**53, 2**62, 2**63 - 1, -(2**15), -(2**31), -(2**31) - 1, -(2**62), -(2**63)),
)
HUGE: tuple[int, ...] = (2**63, 2**64 - 1, 2**64, 10**30, -(2**63) - 1, -(10**30))
"""Beyond 64 bits."""

FLOATS: tuple[float, ...] = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-320, 1e-45, 1e-38, 1e-8, 1e30, 3.5e38, -1e38),
    *(1e308, -1e308, 16777217.0, 2.0**31, 2.0**63, 1e20),
)

TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "N",
        "T",
        "N*T",
        "2*N+1",
        "-1",
        "0",
        "x",
        "y",
        "é𝄞",
        "a\0b",
        "a/b",
        "../x",
        "/",
        "x" * 300,
        "x" * 70_000,
    ),
    *(
        "nan",
        "inf",
        "1e999",
        "9" * 400,
        "true",
        "None",
        "[1]",
        "[" * 3000,
        "{",
        "%s%n",
        "\ud7ff",
        "\N{ZERO WIDTH SPACE}",
    ),
)


def integer(random: Random, near: int = 0, *, unbounded: bool = False) -> int:
    """A number at a limit, or beside another one."""
    match random.randrange(4):
        case 0:
            return random.choice(SMALL)
        case 1:
            return near + random.choice((-2, -1, 1, 2, 10))
        case 2:
            return random.choice(LARGE + HUGE if unbounded else LARGE)
    return random.choice((-near, near * 2, near * 1000, near ^ 1 << random.randrange(40), random.randint(-9, 99)))


def clamped(number: int, low: int, high: int) -> int:
    """The number, or what it is modulo the range."""
    return number if low <= number <= high else low + (number - low) % (high - low + 1)


def real(random: Random, near: float = 0.0) -> float:
    """A number at a limit, or beside another one."""
    if random.random() < 0.6:
        return random.choice(FLOATS)
    return near * random.choice((-1.0, 2.0, 1e20, 1e-20)) + random.choice((0.0, 0.25, -1.0))
