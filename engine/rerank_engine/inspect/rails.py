"""Rails beside the lines of a drawing in text: which column carries which value, and the signs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOXES = {
    "input": "○",
    "once": "□",
    "block": "●",
    "whole": "■",
    "output": "◆",
    "rail": "│",
    "across": "─",
    "end_right": "╯",
    "end_left": "╰",
    "start_right": "╮",
    "start_left": "╭",
    "join_right": "┤",
    "join_left": "├",
    "end_through": "┴",
    "start_through": "┬",
    "join_through": "┼",
}
"""Signs by their meaning; left and right say on which side of the mark, through that the line goes on beyond."""

ASCII = {
    "input": "o",
    "once": "=",
    "block": "*",
    "whole": "#",
    "output": "@",
    "rail": "|",
    "across": "-",
    "end_right": "'",
    "end_left": "`",
    "start_right": ".",
    "start_left": ".",
    "join_right": "|",
    "join_left": "|",
    "end_through": "'",
    "start_through": ".",
    "join_through": "+",
}
"""The same without characters outside ASCII."""


@dataclass(frozen=True)
class Row:
    """One line of rails.

    Attributes
    ----------
    signs
        Meaning of the sign in each column, None where nothing is.
    across
        First and last column of the line between the mark and what is joined with it.
    below
        Whether each column carries a value on.
    unseen
        Values that the node reads and that are on no rail.
    """

    signs: tuple[str | None, ...]
    across: tuple[int, int]
    below: tuple[bool, ...]
    unseen: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of text."""
        return 2 * len(self.signs)

    def draw(self, signs: Mapping[str, str]) -> str:
        """The line itself."""
        first, last = self.across
        text = ""
        for column, sign in enumerate(self.signs):
            inside = first <= column < last
            text += signs[sign] if sign else signs["across"] if first < column < last else " "
            text += signs["across"] if inside else " "
        return text

    def draw_below(self, signs: Mapping[str, str]) -> str:
        """The rails that go on, beside a second line of words."""
        return "".join(f"{signs['rail'] if carried else ' '} " for carried in self.below)


class Rails:
    """Columns of values, filled from the left.

    Parameters
    ----------
    last
        Index of the last reader of each value; values without one get no rail.
    most
        Columns that there may be.
    """

    def __init__(self, last: Mapping[str, int], most: int) -> None:
        self.last, self.most = last, most
        self.columns: list[str | None] = []

    def add(self, index: int, mark: str, reads: Sequence[str], makes: Sequence[str]) -> Row:
        """Draw the line of one node.

        Parameters
        ----------
        index
            Of the node, as in ``last``.
        mark
            Its sign.
        reads, makes
            Names of values.

        Examples
        --------
        >>> rails = Rails({"x": 2, "h": 2}, most=4)
        >>> rows = [rails.add(0, "input", (), ("x",)), rails.add(1, "block", ("x",), ("h",)),
        ...         rails.add(2, "block", ("h", "x"), ("y",))]
        >>> [row.draw(ASCII) for row in rows]
        ['o ', '|-* ', "*-' "]
        """
        before = list(self.columns)
        joined = [column for column, name in enumerate(before) if name is not None and name in reads]
        ending = [column for column in joined if self.last[before[column] or ""] <= index]
        unseen = tuple(name for name in reads if name not in before)
        for column in ending:
            self.columns[column] = None
        carried = [name for name in makes if self.last.get(name, -1) > index]
        place = ending[0] if ending else self._free(set())
        starting = self._start(carried, place, set(joined))
        while len(self.columns) <= place:
            self.columns.append(None)
        touched = [place, *joined, *starting]
        signs = self._signs(before, place, mark, joined, ending, starting)
        row = Row(signs, (min(touched), max(touched)), tuple(name is not None for name in self.columns), unseen)
        while self.columns and self.columns[-1] is None:
            self.columns.pop()
        return row

    def _free(self, used: set[int]) -> int:
        """The first column that carries nothing."""
        column = 0
        while column in used or (column < len(self.columns) and self.columns[column] is not None):
            column += 1
        return column

    def _start(self, carried: Sequence[str], place: int, joined: set[int]) -> list[int]:
        """Give each new value a column, the first one that of the mark; those beyond the last column get none."""
        starting: list[int] = []
        for number, name in enumerate(carried):
            column = place if number == 0 else self._free({place, *joined})
            if column >= self.most:
                continue
            while len(self.columns) <= column:
                self.columns.append(None)
            self.columns[column] = name
            if number:
                starting.append(column)
        return starting

    def _signs(
        self,
        before: Sequence[str | None],
        place: int,
        mark: str,
        joined: Sequence[int],
        ending: Sequence[int],
        starting: Sequence[int],
    ) -> tuple[str | None, ...]:
        touched = [place, *joined, *starting]
        signs: list[str | None] = []
        for column in range(len(self.columns)):
            is_outermost = column in (min(touched), max(touched))
            side = "through" if not is_outermost else "right" if column > place else "left"
            if column == place:
                signs.append(mark)
            elif column in starting:
                signs.append(f"start_{side}")
            elif column in ending:
                signs.append(f"end_{side}")
            elif column in joined:
                signs.append(f"join_{side}")
            else:
                signs.append("rail" if column < len(before) and before[column] is not None else None)
        return tuple(signs)
