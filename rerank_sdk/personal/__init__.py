"""Per-user learning: a small delta on the model's last layer, kept only where it helps on the user's own data."""

from rerank_sdk.personal.patch import Patch
from rerank_sdk.personal.trainer import PersonalisationResult, train_patch

__all__ = ["Patch", "PersonalisationResult", "train_patch"]
