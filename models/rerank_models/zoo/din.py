"""DIN: each candidate looks at the user's recent events through an attention network of its own.

Zhou et al.: "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. As there, attention weights are not
normalised by a softmax, so that the strength of an interest is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rerank_features import FeatureSpec
from rerank_models.zoo.base import Ranker, Standardize, tower


class DIN(Ranker):
    """Target attention over the history, then dense features, two hidden layers, one logit.

    Besides the weight of DIN, the attention network sums a few numbers over the history (``summaries``): how much of
    what kind of event speaks for the candidate, apart from which items they were.

    Parameters
    ----------
    spec
        Feature spec with ``dense``, ``embedding`` and a sequence called ``history`` with embeddings and numbers.
    attention
        Hidden width of the attention network.
    hidden
        Widths of the hidden layers.
    dropout
        Probability with which a hidden unit is dropped in training.
    """

    input_names = ("dense", "embedding", "history_embedding", "history_dense", "history_mask")
    summaries = 3

    def __init__(
        self, spec: FeatureSpec, attention: int = 16, hidden: tuple[int, int] = (64, 32), *, dropout: float = 0.1
    ) -> None:
        super().__init__(spec, dropout=dropout)
        width = self.shapes["embedding"].shape[-1]
        event = self.shapes["history_dense"].shape[-1]
        self.standardize_event = Standardize(event)
        self.attention = nn.Sequential(
            nn.Linear(3 * width + event + 1, attention), nn.ReLU(), nn.Linear(attention, 1 + self.summaries)
        )
        self.tower = tower([2 * width + self.summaries + self.shapes["dense"].shape[-1], *hidden], dropout)
        self.head = nn.Linear(hidden[-1], 1)

    def forward(
        self, dense: Tensor, embedding: Tensor, history_embedding: Tensor, history_dense: Tensor, history_mask: Tensor
    ) -> Tensor:
        """Score candidates of one list.

        Parameters
        ----------
        dense
            (N, F) float32.
        embedding
            (N, E) float32.
        history_embedding
            (T, E) float32, newest first.
        history_dense
            (T, 2) float32: value and log age of each event.
        history_mask
            (T,) float32, 1 where there is an event.

        Returns
        -------
        Tensor
            (N,) logits.
        """
        product = embedding.unsqueeze(-2) * history_embedding
        queries = embedding.unsqueeze(-2).expand_as(product)
        keys = history_embedding.unsqueeze(-3).expand_as(product)
        event = self.standardize_event(history_dense)
        events = event.unsqueeze(-3).expand(*product.shape[:-1], event.shape[-1])
        similarity = product.sum(-1, keepdim=True)
        looks = self.attention(torch.cat([queries, keys, product, similarity, events], -1))
        looks = looks * history_mask.unsqueeze(-1)
        weights, summaries = looks[..., :1], looks[..., 1:].sum(-2)
        interest = (weights * history_embedding).sum(-2)
        numbers = self.standardize(dense)
        return self.head(self.tower(torch.cat([interest, embedding * interest, summaries, numbers], -1))).squeeze(-1)
