"""DeepFM: factorisation machine and deep network over shared embeddings.

Guo, Tang, Ye, Li, He: "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rerank_features import FeatureSpec
from rerank_models.zoo.base import Ranker, tower


class DeepFM(Ranker):
    """Hashed ids and dense features; first-order, pairwise and deep terms are added.

    Parameters
    ----------
    spec
        Feature spec with ``dense`` and ``ids``.
    factors
        Width of an id's embedding.
    hidden
        Widths of the hidden layers.
    dropout
        Probability with which a hidden unit is dropped in training.
    """

    input_names = ("dense", "ids")
    offsets: Tensor

    def __init__(
        self, spec: FeatureSpec, factors: int = 8, hidden: tuple[int, int] = (64, 32), *, dropout: float = 0.1
    ) -> None:
        super().__init__(spec, dropout=dropout)
        widths = [feature.rows for feature in spec.ids for _ in range(feature.width or 1)]
        starts: list[int] = []
        total = 0
        for feature in spec.ids:
            starts += [total] * (feature.width or 1)
            total += feature.rows
        self.register_buffer("offsets", torch.tensor(starts, dtype=torch.int32))
        columns, dense = len(widths), self.shapes["dense"].shape[-1]
        self.embedding = nn.Embedding(total, factors)
        self.first_order = nn.Embedding(total, 1)
        nn.init.normal_(self.embedding.weight, std=0.05)
        nn.init.zeros_(self.first_order.weight)
        self.dense_first_order = nn.Linear(dense, 1)
        self.dense_field = nn.Linear(dense, factors)
        self.tower = tower([columns * factors + dense, *hidden], dropout)
        self.head = nn.Linear(hidden[-1], 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Score (N, F) float32 and (N, C) int32 to (N,) logits."""
        numbers = self.standardize(dense)
        rows = ids + self.offsets
        fields = self.embedding(rows)
        linear = self.first_order(rows).sum(-2) + self.dense_first_order(numbers)
        numbers_field = self.dense_field(numbers)
        summed = fields.sum(-2) + numbers_field
        squares = (fields * fields).sum(-2) + numbers_field * numbers_field
        pairs = 0.5 * (summed * summed - squares).sum(-1, keepdim=True)
        deep = self.head(self.tower(torch.cat([fields.flatten(-2), numbers], -1)))
        return (linear + pairs + deep).squeeze(-1)
