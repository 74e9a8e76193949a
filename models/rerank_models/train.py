"""Train a model of the zoo on lists: softmax cross-entropy over each list, early stopping on later lists.

The loss of a list is the cross-entropy between the softmax of its scores and its labels divided by their sum
(ListNet's top-one form; Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach", ICML 2007).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from rerank_features import FeatureSpec
from rerank_features.training_set import TrainingSet
from rerank_models.zoo import ZOO, Ranker, TwoStreams

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class TrainOptions:
    """How to train.

    Attributes
    ----------
    epochs
        At most this many passes over the lists.
    patience
        Stop after this many epochs without a better validation NDCG@10.
    batch_lists
        Lists in a step.
    learning_rate, weight_decay
        Of AdamW.
    dropout
        Of hidden units.
    seed
        Of initial weights, order and dropout.
    """

    epochs: int = 30
    patience: int = 5
    batch_lists: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    dropout: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class TrainResult:
    """A trained model.

    Attributes
    ----------
    model
        With the weights of the best epoch.
    validation_ndcg10
        Mean NDCG@10 over the validation lists, per epoch.
    best_epoch
        Index of the best one.
    """

    model: Ranker
    validation_ndcg10: tuple[float, ...]
    best_epoch: int


def train_model(
    name: str | type[Ranker],
    spec: FeatureSpec,
    data: TrainingSet,
    validation: TrainingSet,
    options: TrainOptions | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train one model.

    Parameters
    ----------
    name
        Key of the zoo, or a model's class.
    spec
        The spec that made both data sets.
    data, validation
        Lists to learn from, and later lists to stop by.
    options
        See :class:`TrainOptions`.
    progress
        Called with (epochs done, epochs at most, text).
    """
    options = options or TrainOptions()
    torch.manual_seed(options.seed)
    model = (ZOO[name] if isinstance(name, str) else name)(spec, dropout=options.dropout)
    model.standardize.fit(torch.from_numpy(data.per_candidate["dense"]))
    _fit_history(model, data)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    order = np.random.default_rng(options.seed)
    batches = _Batches(model, data)
    history: list[float] = []
    best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})
    for epoch in range(options.epochs):
        model.train()
        for chosen in _chunks(order.permutation(batches.useful), options.batch_lists):
            inputs, labels, mask = batches.take(chosen)
            loss = list_loss(score_lists(model, inputs), labels, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value = mean_ndcg(model, validation)
        history.append(value)
        if value > best[0]:
            best = (value, epoch, copy.deepcopy(model.state_dict()))
        if progress is not None:
            progress(epoch + 1, options.epochs, f"validation NDCG@10 {value:.4f}")
        if epoch - best[1] >= options.patience:
            break
    model.load_state_dict(best[2])
    model.eval()
    return TrainResult(model, tuple(history), best[1])


def score_lists(model: Ranker, inputs: tuple[Tensor, ...]) -> Tensor:
    """Score (B, N, …) and (B, …) inputs to (B, N) logits."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return vmap(lambda *one: functional_call(model, state, one), randomness="different")(*inputs)


def list_loss(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean listwise cross-entropy of (B, N) scores; masked candidates do not exist."""
    logs = torch.log_softmax(scores.masked_fill(~mask, -1e9), -1)
    weights = labels * mask
    total = weights.sum(-1).clamp(min=1e-9)
    return -(weights * logs).sum(-1).div(total).mean()


def mean_ndcg(model: Ranker, data: TrainingSet, k: int = 10) -> float:
    """Mean NDCG@k over the lists with a relevant candidate; ties go to the earlier one."""
    model.eval()
    batches = _Batches(model, data)
    total = 0.0
    with torch.no_grad():
        for chosen in _chunks(batches.useful, 256):
            inputs, labels, mask = batches.take(chosen)
            scores = score_lists(model, inputs).masked_fill(~mask, -1e9)
            gains = (labels * mask).numpy()
            ranked = np.take_along_axis(gains, np.argsort(-scores.numpy(), axis=1, kind="stable"), 1)[:, :k]
            ideal = -np.sort(-gains, axis=1)[:, :k]
            discount = 1.0 / np.log2(np.arange(2, ranked.shape[1] + 2))
            total += float(((ranked * discount).sum(1) / (ideal * discount).sum(1)).sum())
    return total / max(1, len(batches.useful))


def _fit_history(model: Ranker, data: TrainingSet) -> None:
    if isinstance(model, TwoStreams):
        model.fit_sequences(data.per_list)
    standardize = getattr(model, "standardize_event", None)
    if standardize is not None:
        there = data.per_list["history_mask"] > 0
        standardize.fit(torch.from_numpy(data.per_list["history_dense"][there]))


def _chunks(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


class _Batches:
    """Lists of different lengths as padded tensors."""

    def __init__(self, model: Ranker, data: TrainingSet) -> None:
        self.model, self.data = model, data
        self.sizes = np.diff(data.offsets)
        relevant = np.add.reduceat(data.labels * data.mask, data.offsets[:-1]) if len(data.labels) else np.zeros(0)
        self.useful = np.flatnonzero((self.sizes > 0) & (relevant > 0))

    def take(self, lists: np.ndarray) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        width = int(self.sizes[lists].max())
        columns = np.arange(width)
        inside = columns < self.sizes[lists][:, None]
        rows = np.where(inside, self.data.offsets[lists][:, None] + columns, 0)
        inputs = tuple(
            torch.from_numpy(
                self.data.per_candidate[name][rows]
                if self.model.shapes[name].per_candidate
                else self.data.per_list[name][lists]
            )
            for name in self.model.input_names
        )
        mask = torch.from_numpy(inside & self.data.mask[rows])
        return inputs, torch.from_numpy(self.data.labels[rows]), mask
