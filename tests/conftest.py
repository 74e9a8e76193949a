"""For all tests."""

from __future__ import annotations

import os

# Models are compiled by the hundred, and a search beside each would take the processors from the tests.
os.environ["RERANK_SEARCH_S"] = "0"
