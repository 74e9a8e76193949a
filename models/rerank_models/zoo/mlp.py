"""A multilayer perceptron over the dense features."""

from __future__ import annotations

from torch import Tensor, nn

from rerank_features import FeatureSpec
from rerank_models.zoo.base import Ranker, tower


class MLP(Ranker):
    """Dense features, two hidden layers, one logit.

    Parameters
    ----------
    spec
        Feature spec with a ``dense`` array.
    hidden
        Widths of the hidden layers.
    dropout
        Probability with which a hidden unit is dropped in training.
    """

    input_names = ("dense",)

    def __init__(self, spec: FeatureSpec, hidden: tuple[int, int] = (64, 32), *, dropout: float = 0.1) -> None:
        super().__init__(spec, dropout=dropout)
        self.tower = tower([self.shapes["dense"].shape[-1], *hidden], dropout)
        self.head = nn.Linear(hidden[-1], 1)

    def forward(self, dense: Tensor) -> Tensor:
        """Score (N, F) float32 to (N,) logits."""
        return self.head(self.tower(self.standardize(dense))).squeeze(-1)
