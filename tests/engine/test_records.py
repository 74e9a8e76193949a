"""Records: fields in order, defaults, equality, immutability, and what the standard library may do with them."""

from __future__ import annotations

import copy
import pickle

import pytest

from rerank_engine.records import Record


class Point(Record):
    """A record with a default."""

    x: int
    y: int = 7

    @property
    def total(self) -> int:
        return self.x + self.y


class Other(Record):
    """The same fields."""

    x: int
    y: int = 7


def test_fields_come_in_order_by_name_and_by_default() -> None:
    assert (Point(1).x, Point(1).y, Point(1, 2).y, Point(y=3, x=1).y) == (1, 7, 2, 3)
    assert Point(1).total == 8
    assert repr(Point(1)) == "Point(x=1, y=7)"


@pytest.mark.parametrize(
    ("values", "named", "told"),
    [
        ((), {}, "field 'x' is missing"),
        ((1, 2, 3), {}, "has the fields x, y; got 3 in order"),
        ((1,), {"x": 2}, "got 1 in order, x"),
        ((1,), {"z": 2}, "got 1 in order, z"),
    ],
)
def test_wrong_fields_are_refused(values: tuple[int, ...], named: dict[str, int], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Point(*values, **named)


def test_equal_only_to_its_own_kind() -> None:
    assert Point(1) == Point(1, 7)
    assert hash(Point(1)) == hash(Point(1, 7))
    assert Point(1) != Point(2)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 7)


def test_immutable() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="Point is immutable: 'x' cannot be set"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del point.x
    assert point.replace(x=5) == Point(5)
    assert point == Point(1)
    with pytest.raises(TypeError, match="got 0 in order"):
        point.replace(z=1)


def test_copied_and_pickled() -> None:
    point = Point(1, 2)
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
