"""The command line ``rerank``: one file a command; whatever is heavy is imported inside the commands.

This is the only part of the SDK that may use ``rerank_models`` and ``rerank_simulator``.
"""

from __future__ import annotations

from rerank_sdk.cli.application import app

__all__ = ["app"]
