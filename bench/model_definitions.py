"""Representative re-ranking models in PyTorch, with fixed seeds: the definitions that every engine's model comes from.

All take a list of N candidates, and what is shared by them, and give one score each, shape (N,). The sizes are those
of models that run on devices: DeepFM (Guo et al. 2017), DIN (Zhou et al. 2018), PRM (Pei et al. 2019) and EdgeRec
(Gong et al. 2020). Needs PyTorch only, so that converters can use it in environments of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SEED = 1234
"""Of the weights."""

ITEM_COUNT = 10_000
CATEGORY_COUNT = 1_000
HISTORY_LENGTH = 50
CLICK_LENGTH = 20
LONGEST_LIST = 1_024


class Noop(nn.Module):
    """Next to no work: what is measured is the call itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] + 1.0


class Mlp(nn.Module):
    """64-128-64-1 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class MergedDeepFm(nn.Module):
    """DeepFM whose fields share one table: offsets by field, the first-order weight as the last column."""

    def __init__(self, field_count: int = 16, width: int = 8, dense_count: int = 13) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(field_count * ITEM_COUNT, width + 1)
        nn.init.normal_(self.table.weight, std=0.1)
        self.register_buffer("offsets", torch.arange(field_count) * ITEM_COUNT)
        self.dense_weight = nn.Linear(dense_count, 1)
        self.layers = nn.Sequential(
            nn.Linear(field_count * width + dense_count, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        rows = self.table(ids + self.offsets)
        vectors, weights = rows[..., : self.width], rows[..., self.width]
        total = vectors.sum(1)
        pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1, keepdim=True)
        deep = self.layers(torch.cat([vectors.flatten(1), dense], 1))
        logit = weights.sum(1, keepdim=True) + self.dense_weight(dense) + pairs + deep
        return torch.sigmoid(logit).squeeze(-1)


class Din(nn.Module):
    """Deep Interest Network: an MLP weighs each of 50 past items for each candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.item_table = nn.Embedding(ITEM_COUNT, 16)
        self.category_table = nn.Embedding(CATEGORY_COUNT, 8)
        self.attention = nn.Sequential(
            nn.Linear(128, 80), nn.PReLU(80), nn.Linear(80, 40), nn.PReLU(40), nn.Linear(40, 1)
        )
        self.head = nn.Sequential(nn.Linear(96, 200), nn.PReLU(200), nn.Linear(200, 80), nn.PReLU(80), nn.Linear(80, 1))
        for table in (self.item_table, self.category_table):
            nn.init.normal_(table.weight, std=0.3)

    def forward(
        self,
        item: Tensor,
        cat: Tensor,
        dense: Tensor,
        h_item: Tensor,
        h_cat: Tensor,
        h_dense: Tensor,
        h_mask: Tensor,
    ) -> Tensor:
        query = torch.cat([self.item_table(item), self.category_table(cat), dense], 1)
        history = torch.cat([self.item_table(h_item), self.category_table(h_cat), h_dense], 1)
        queries = query.unsqueeze(1).expand(-1, HISTORY_LENGTH, -1)
        keys = history.unsqueeze(0).expand(query.shape[0], -1, -1)
        pairs = torch.cat([queries, keys, queries - keys, queries * keys], 2).reshape(-1, 128)
        logits = self.attention(pairs).reshape(-1, HISTORY_LENGTH) + (h_mask - 1.0) * 1e4
        interest = torch.softmax(logits, 1) @ history
        return torch.sigmoid(self.head(torch.cat([interest, query, interest * query], 1))).squeeze(-1)


class EncoderLayer(nn.Module):
    """A Transformer layer with the norm after each part."""

    def __init__(self, width: int, head_count: int, hidden: int) -> None:
        super().__init__()
        self.head_count, self.head_width = head_count, width // head_count
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.expand, self.shrink = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(1, -1, self.head_count, self.head_width).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        weights = torch.softmax((query @ key.transpose(2, 3)) * (1.0 / math.sqrt(self.head_width)), -1)
        mixed = (weights @ value).transpose(1, 2).reshape(1, -1, self.head_count * self.head_width)
        x = self.first_norm(x + self.mix(mixed))
        return self.second_norm(x + self.shrink(torch.relu(self.expand(x))))


class Prm(nn.Module):
    """Personalised re-ranking: two Transformer layers over the list."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(LONGEST_LIST, width) * 0.1)
        self.layers = nn.ModuleList(EncoderLayer(width, 4, 128) for _ in range(2))
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (x + self.positions[: x.shape[0]]).unsqueeze(0)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.score(hidden).reshape(-1)


class EdgeRec(nn.Module):
    """GRUs over exposures, clicks and the list; each candidate attends to the two histories."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(width)
        self.exposures, self.clicks, self.candidates = (nn.GRU(width, width, batch_first=True) for _ in range(3))
        self.exposure_query, self.click_query = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Sequential(
            nn.Linear(4 * width, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )  # fmt: skip

    def forward(self, cand: Tensor, expo: Tensor, clk: Tensor) -> Tensor:
        exposed = self.exposures(expo.unsqueeze(0))[0].squeeze(0)
        clicked = self.clicks(clk.unsqueeze(0))[0].squeeze(0)
        listed = self.candidates(cand.unsqueeze(0))[0].squeeze(0)
        of_exposed = torch.softmax(self.exposure_query(listed) @ exposed.t() * self.scale, 1) @ exposed
        of_clicked = torch.softmax(self.click_query(listed) @ clicked.t() * self.scale, 1) @ clicked
        return torch.sigmoid(self.head(torch.cat([cand, listed, of_exposed, of_clicked], 1))).squeeze(-1)


@dataclass(frozen=True)
class Definition:
    """A model, and how its random inputs are drawn.

    Attributes
    ----------
    make
        Builds the module.
    inputs
        By name, in the order of ``forward``: ``shape`` with ``"N"`` for the number of candidates, ``dtype``, and
        ``kind``: ``"normal"``; ``"integers"`` from 0 to below ``below``; ``"mask"``: ones, at least ``at_least`` of
        them, then zeros.
    """

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Mapping[str, Any]]


def _normal(*shape: int | str) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float32", "kind": "normal"}


def _ids(below: int, *shape: int | str) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "int64", "kind": "integers", "below": below}


_MASK = {"shape": [HISTORY_LENGTH], "dtype": "float32", "kind": "mask", "at_least": 20}

DEFINITIONS: dict[str, Definition] = {
    "noop": Definition(Noop, {"x": _normal("N", 64)}),
    "mlp": Definition(Mlp, {"x": _normal("N", 64)}),
    "deepfm_merged": Definition(MergedDeepFm, {"ids": _ids(ITEM_COUNT, "N", 16), "dense": _normal("N", 13)}),
    "din": Definition(
        Din,
        {
            "item": _ids(ITEM_COUNT, "N"),
            "cat": _ids(CATEGORY_COUNT, "N"),
            "dense": _normal("N", 8),
            "h_item": _ids(ITEM_COUNT, HISTORY_LENGTH),
            "h_cat": _ids(CATEGORY_COUNT, HISTORY_LENGTH),
            "h_dense": _normal(HISTORY_LENGTH, 8),
            "h_mask": _MASK,
        },
    ),
    "prm": Definition(Prm, {"x": _normal("N", 64)}),
    "edgerec": Definition(
        EdgeRec, {"cand": _normal("N", 32), "expo": _normal(HISTORY_LENGTH, 32), "clk": _normal(CLICK_LENGTH, 32)}
    ),
}


def build(name: str) -> nn.Module:
    """Make a model with its fixed weights, ready to run."""
    torch.manual_seed(SEED)
    module = DEFINITIONS[name].make()
    return module.requires_grad_(False).eval()


def example(name: str, candidates: int) -> dict[str, Tensor]:
    """Inputs to trace and export a model with."""
    generator = torch.Generator().manual_seed(candidates)
    made = {}
    for key, spec in DEFINITIONS[name].inputs.items():
        shape = [candidates if size == "N" else size for size in spec["shape"]]
        if spec["kind"] == "normal":
            made[key] = torch.randn(shape, generator=generator)
        elif spec["kind"] == "integers":
            made[key] = torch.randint(spec["below"], shape, generator=generator)
        else:
            made[key] = (torch.arange(shape[0]) < (spec["at_least"] + shape[0]) // 2).float()
    return made
