"""The protocol of ``rerank run``: one JSON object a line goes in, and comes out where there is something to answer.

==============================  ========================================================
in                              out
==============================  ========================================================
``{"event": {...}}``            nothing; the fields are those of ``rerank_sdk.Event``
``{"items": [{...}, ...]}``     nothing; each is a ``rerank_sdk.Item``
``{"request": {...}}``          ``{"line": 3, "ranking": {...}}``
``{"personalise": "user"}``     ``{"line": 4, "personalise": {...}}``
``{"forget": "user"}``          ``{"line": 5, "forget": {"user": "user", "rows": 12}}``
anything else                   ``{"line": 6, "error": "what is wrong"}``
==============================  ========================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from rerank_engine.errors import EventError, RerankError
from rerank_features import Event, Item, Request
from rerank_sdk.reranker import Reranker


@dataclass
class LineCounts:
    """What has come in so far.

    Attributes
    ----------
    events, requests, bad
        New events, requests that were answered, lines that could not be understood or done.
    """

    events: int = 0
    requests: int = 0
    bad: int = 0


class LineServer:
    """Answers lines from a re-ranker. A bad line changes nothing but its count.

    Parameters
    ----------
    reranker
        What answers.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Reranker.open(folder) as reranker:
    ...     server = LineServer(reranker)
    ...     server.answer(1, b'{"event": {"user": "u", "item": "i", "kind": "like", "time_ms": 1}}')
    ...     server.answer(2, b'{"forget": "u"}')["forget"]
    ...     server.answer(3, b'{"frobnicate": 1}')["error"]
    {'user': 'u', 'rows': 1}
    "unknown key 'frobnicate': use one of event, items, request, personalise, forget, export"
    """

    def __init__(self, reranker: Reranker) -> None:
        self.counts = LineCounts()
        self._reranker = reranker
        self._handlers: dict[str, Callable[[Any], dict[str, Any] | None]] = {
            "event": self._event,
            "items": self._items,
            "request": self._request,
            "personalise": self._personalise,
            "forget": self._forget,
            "export": self._export,
        }

    def answer(self, number: int, line: bytes) -> dict[str, Any] | None:
        """Do what a line says.

        Parameters
        ----------
        number
            Of the line, from 1.
        line
            UTF-8 text; blank lines are nothing.

        Returns
        -------
        dict or None
            The answer, ready for JSON, or None when there is none.
        """
        if not line.strip():
            return None
        try:
            key, content = self._read(line)
            found = self._handlers[key](content)
        except RerankError as error:
            return self._refuse(number, str(error))
        except Exception as error:  # the stream goes on, whatever one line does
            return self._refuse(number, f"{type(error).__name__}: {error}")
        return None if found is None else {"line": number, **found}

    def _refuse(self, number: int, reason: str) -> dict[str, Any]:
        self.counts.bad += 1
        return {"line": number, "error": reason}

    def _read(self, line: bytes) -> tuple[str, Any]:
        try:
            message = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise EventError(f"the line is not JSON in UTF-8: {error or type(error).__name__}") from None
        if not isinstance(message, dict) or len(message) != 1:
            what = f"the keys {sorted(message)}" if isinstance(message, dict) else type(message).__name__
            raise EventError(f"expected an object with one key of {', '.join(self._handlers)}; got {what}")
        key, content = next(iter(message.items()))
        if key not in self._handlers:
            raise EventError(f"unknown key {key!r}: use one of {', '.join(self._handlers)}")
        return key, content

    def _event(self, content: Any) -> None:
        self.counts.events += self._reranker.track(_border(Event, content))

    def _items(self, content: Any) -> None:
        if not isinstance(content, list):
            raise EventError(f"items: expected a list of items, got {type(content).__name__}")
        self._reranker.remember([_border(Item, one) for one in content])

    def _request(self, content: Any) -> dict[str, Any]:
        request = _border(Request, content)
        ranking = self._reranker.rerank(request)
        self.counts.requests += 1
        return {"ranking": {"user": request.user, "request": request.id, **ranking.as_dict()}}

    def _personalise(self, content: Any) -> dict[str, Any]:
        user = _user("personalise", content)
        return {"personalise": {"user": user, **asdict(self._reranker.personalise(user))}}

    def _export(self, content: Any) -> dict[str, Any]:
        return {"export": self._reranker.export(_user("export", content))}

    def _forget(self, content: Any) -> dict[str, Any]:
        user = _user("forget", content)
        return {"forget": {"user": user, "rows": self._reranker.forget(user)}}


def _border(kind: type[Event] | type[Item] | type[Request], content: Any) -> Any:
    """Read through the border's own JSON reader, which knows JSON's lists from tuples and reports by field."""
    if not isinstance(content, dict):
        raise EventError(f"{kind.__name__.lower()}: expected an object, got {type(content).__name__}")
    return kind.from_json(json.dumps(content))


def _user(what: str, content: Any) -> str:
    if not isinstance(content, str) or not content:
        raise EventError(f"{what}: expected a user id, got {content!r}")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
