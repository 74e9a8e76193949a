"""What is kept on the device: events, training examples, patches and remembered items, in one SQLite file.

>>> import tempfile, pathlib
>>> from rerank_features import Event
>>> from rerank_sdk.store import EventStore
>>> with tempfile.TemporaryDirectory() as folder:
...     with EventStore.open(pathlib.Path(folder) / "events.db") as store:
...         store.append(Event(user="u1", item="i7", kind="click", time_ms=1_700_000_000_000))
...         [event.item for event in store.read("u1")]
['i7']
"""

from __future__ import annotations

from rerank_sdk.store.backups import Verification
from rerank_sdk.store.consent import Consent, ConsentError
from rerank_sdk.store.event_store import EventStore
from rerank_sdk.store.health import StoreHealth
from rerank_sdk.store.quotas import Pruned, StoreLimits
from rerank_sdk.store.rows import Example, StoredPatch, StoredState

__all__ = [
    "Consent",
    "ConsentError",
    "EventStore",
    "Example",
    "Pruned",
    "StoreHealth",
    "StoreLimits",
    "StoredPatch",
    "StoredState",
    "Verification",
]
