"""Events in and out: JSON lines, Parquet, and the logs of Segment and Snowplow through a mapping.

>>> import tempfile
>>> from rerank_features import Event
>>> from rerank_sdk.exchange import read_events, write_events
>>> events = [Event(user="u1", item="i7", kind="click", time_ms=1_700_000_000_000, attributes={"list": "home"})]
>>> with tempfile.TemporaryDirectory() as folder:
...     written = write_events(events, f"{folder}/events.jsonl.gz")
...     list(read_events(f"{folder}/events.jsonl.gz")) == events
True
"""

from __future__ import annotations

from rerank_sdk.exchange.exporting import write_events
from rerank_sdk.exchange.formats import FORMATS
from rerank_sdk.exchange.importing import ImportReport, Rejection, import_events, read_events
from rerank_sdk.exchange.mapping import BUILT_IN, EventMapping, builtin_text

__all__ = [
    "BUILT_IN",
    "FORMATS",
    "EventMapping",
    "ImportReport",
    "Rejection",
    "builtin_text",
    "import_events",
    "read_events",
    "write_events",
]
