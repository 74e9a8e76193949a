"""Two behaviour streams apart: each candidate looks at what was shown, and at what was opened, with what was done.

The behaviour attention of Gong et al.: "EdgeRec: Recommender System on Edge in Mobile Taobao", CIKM 2020: the
candidate's embedding asks, the items of a stream answer, and what comes back is items and actions together. Their
recurrent encoders before it are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rerank_features import FeatureSpec
from rerank_models.zoo.base import Ranker, Standardize, tower

STREAMS = ("exposures", "page_views")


class TwoStreams(Ranker):
    """Attention over exposures and over page views, then dense features, two hidden layers, one logit.

    Parameters
    ----------
    spec
        Feature spec with ``dense``, ``embedding``, and the sequences ``exposures`` and ``page_views`` with embeddings
        and numbers: the ready spec ``edgerec``.
    width
        Of queries, keys and values.
    hidden
        Widths of the hidden layers.
    dropout
        Probability with which a hidden unit is dropped in training.
    """

    input_names = (
        "dense",
        "embedding",
        *(f"{stream}_{part}" for stream in STREAMS for part in ("embedding", "dense", "mask")),
    )

    def __init__(
        self, spec: FeatureSpec, width: int = 32, hidden: tuple[int, int] = (128, 64), *, dropout: float = 0.1
    ) -> None:
        super().__init__(spec, dropout=dropout)
        embedding = self.shapes["embedding"].shape[-1]
        numbers = [self.shapes[f"{stream}_dense"].shape[-1] for stream in STREAMS]
        self.standardize_actions = nn.ModuleList(Standardize(count) for count in numbers)
        self.queries = nn.ModuleList(nn.Linear(embedding, width) for _ in STREAMS)
        self.keys = nn.ModuleList(nn.Linear(embedding, width) for _ in STREAMS)
        self.values = nn.ModuleList(nn.Linear(embedding + count, width) for count in numbers)
        self.scale = width**-0.5
        inner = self.shapes["dense"].shape[-1] + embedding + len(STREAMS) * width
        self.tower = tower([inner, *hidden], dropout)
        self.head = nn.Linear(hidden[-1], 1)

    def fit_sequences(self, per_list: Mapping[str, NDArray[np.float32]]) -> None:
        """Take mean and deviation of the actions from training data."""
        for stream, standardize in zip(STREAMS, self.standardize_actions, strict=True):
            there = per_list[f"{stream}_mask"] > 0
            if there.sum() > 1 and isinstance(standardize, Standardize):
                standardize.fit(torch.from_numpy(per_list[f"{stream}_dense"][there]))

    def forward(
        self,
        dense: Tensor,
        embedding: Tensor,
        exposures_embedding: Tensor,
        exposures_dense: Tensor,
        exposures_mask: Tensor,
        page_views_embedding: Tensor,
        page_views_dense: Tensor,
        page_views_mask: Tensor,
    ) -> Tensor:
        """Score candidates of one list.

        Parameters
        ----------
        dense
            (N, F) float32.
        embedding
            (N, E) float32.
        exposures_embedding, page_views_embedding
            (T, E) float32, newest first.
        exposures_dense, page_views_dense
            (T, D) float32: numbers of each event, and of what followed it.
        exposures_mask, page_views_mask
            (T,) float32, 1 where there is an event.

        Returns
        -------
        Tensor
            (N,) logits.
        """
        streams = (
            (exposures_embedding, exposures_dense, exposures_mask),
            (page_views_embedding, page_views_dense, page_views_mask),
        )
        parts = [self.standardize(dense), embedding]
        for place, (items, actions, mask) in enumerate(streams):
            behaviour = torch.cat([items, self.standardize_actions[place](actions)], -1)
            looks = self.queries[place](embedding) @ self.keys[place](items).transpose(-2, -1) * self.scale
            # Where a stream is empty all weights are equal, and the mask takes them away.
            weights = torch.softmax(looks + (mask - 1.0) * 1e9, -1) * mask
            parts.append(weights @ self.values[place](behaviour))
        return self.head(self.tower(torch.cat(parts, -1))).squeeze(-1)
