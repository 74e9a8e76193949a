"""Immutable records for what a starting process imports.

A frozen dataclass writes its methods as source and compiles it: 1.3 ms for the first in a process, 0.3 ms for a
``NamedTuple``; a first score takes 5 ms. The methods here are the same for all, so a class costs what its body costs.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, dataclass_transform

_Self = TypeVar("_Self", bound="Record")


@dataclass_transform(frozen_default=True, kw_only_default=False)
class Record:
    """Base of classes whose annotations are their fields, in order; a value in the class is a default.

    Examples
    --------
    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1, y=0), Point(1).replace(y=2)
    (Point(x=1, y=0), True, Point(x=1, y=2))
    """

    fields_: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.fields_ = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.fields_
        held: dict[str, Any] = dict(zip(names, values, strict=False))
        if len(values) > len(names) or any(name in held or name not in names for name in named):
            given = ", ".join([f"{len(values)} in order", *named])
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(names)}; got {given}")
        held.update(named)
        for name in names[len(values) :]:
            if name not in held:
                if not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__}: field {name!r} is missing")
                held[name] = getattr(type(self), name)
        self.__dict__.update(held)

    def replace(self: _Self, **changes: Any) -> _Self:
        """The same record with some fields changed."""
        return type(self)(**{**self.__dict__, **changes})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be set; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self.fields_))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.fields_)
        return f"{type(self).__name__}({inside})"
