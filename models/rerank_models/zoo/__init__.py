"""The models, one a file. Each scores the candidates of one list: (N, …) and history arrays in, (N,) logits out."""

from __future__ import annotations

from rerank_models.zoo.base import Ranker
from rerank_models.zoo.deepfm import DeepFM
from rerank_models.zoo.din import DIN
from rerank_models.zoo.mlp import MLP
from rerank_models.zoo.two_streams import TwoStreams

ZOO: dict[str, type[Ranker]] = {"mlp": MLP, "deepfm": DeepFM, "din": DIN}
"""Models by the name that ``rerank train --model`` takes. ``TwoStreams`` needs what MovieLens does not have."""

__all__ = ["DIN", "MLP", "ZOO", "DeepFM", "Ranker", "TwoStreams"]
