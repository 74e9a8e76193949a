"""Edits of models that are text: LightGBM's lines of ``key=value``, and Caffe's prototxt."""

from __future__ import annotations

import re
from random import Random

from . import pools

_PROTOTXT_WORDS: tuple[str, ...] = (
    *("-1", "0", "1", "2", "7", "-2", "99", "65536", "2147483647", "-2147483648", "4294967295", "1e38", "nan", "-inf"),
    *("true", "TRAIN", "MAX", "SUM", '"x"', '"fc"', '"ReLU"', '"Scale"', '"Input"', '"Data"', '"Silence"', '""', "{"),
    *("}", "", "include { phase: TRAIN }", "phase: TRAIN", "blobs { }", "param { name: 'w' }", "axis: 0", "axis: -9"),
    *("input: 'y'", "input_dim: 3", 'name: "\\xff\\xfe"', "dim: 99999999999", "[a.b] { }", "#", "'", "layer {" * 200),
    *("layer { layer {", "num_output: 1000000000", "kernel_size: 2147483647", "pad: 1000000", "tiles: 2000000000"),
)


def changed_lines(text: str, random: Random) -> str:
    """Change, drop, repeat or move one to three lines of a LightGBM model."""
    lines = text.split("\n")
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(10):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                lines = lines[: at + 1] or lines
            case 4:
                lines[at:at] = lines[other : other + random.choice((5, 20, 60))]
            case _:
                lines[at] = _changed_line(lines[at], random)
        lines = lines or [""]
    return "\n".join(lines)


def _changed_line(line: str, random: Random) -> str:
    key, equals, value = line.partition("=")
    if not equals:
        return random.choice((line + "=", "Tree=0", "tree", "end of trees", random.choice(pools.TEXTS)))
    words = value.split(" ")
    at = random.randrange(len(words))
    match random.randrange(8):
        case 0:
            del words[at]
        case 1:
            words.insert(at, random.choice(words))
        case 2:
            words = words * random.choice((2, 1000))
        case 3:
            key = random.choice(("", key + "s", "num_leaves", "threshold", key.upper()))
        case 4:
            words[at] = random.choice(pools.TEXTS)
        case _:
            words[at] = _changed_number(words[at], random)
    return f"{key}{equals}{' '.join(words)}"


def _changed_number(word: str, random: Random) -> str:
    if re.fullmatch(r"-?\d+", word):
        return str(pools.integer(random, int(word), unbounded=True))
    return str(random.choice((pools.real(random), pools.integer(random, unbounded=True), f"{word}x", "0x1p3")))


def changed_words(text: str, random: Random) -> str:
    """Exchange, drop, repeat or move one to three words of a prototxt."""
    words = re.findall(r"\s+|[^\s]+", text)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at, other = random.randrange(len(words)), random.randrange(len(words))
        match random.randrange(5):
            case 0:
                words[at] = random.choice(_PROTOTXT_WORDS)
            case 1:
                del words[at]
            case 2:
                words.insert(at, random.choice(_PROTOTXT_WORDS))
            case 3:
                words[at] = words[other]
            case 4:
                words[at:at] = words[other : other + random.choice((5, 30))]
        words = words or [""]
    return "".join(words)
