"""Embedding bags in a form that exports well."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def plain_bags(module: Any) -> Iterator[None]:
    """Let bags of a fixed length be a lookup and a reduction for a while.

    PyTorch's exporters write a bag as a loop over its rows. Bags with offsets, whose lengths vary, stay as they are.

    Parameters
    ----------
    module
        Every ``torch.nn.EmbeddingBag`` in it computes the same numbers another way until the end.
    """
    import torch

    bags = [part for part in module.modules() if type(part) is torch.nn.EmbeddingBag and part.max_norm is None]
    try:
        for bag in bags:
            bag.forward = _plain_forward(bag, bag.forward)
        yield
    finally:
        for bag in bags:
            vars(bag).pop("forward", None)


def _plain_forward(bag: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def forward(input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:  # noqa: A002  (PyTorch's name)
        if input.dim() != 2 or offsets is not None:
            return original(input, offsets, per_sample_weights)
        rows = torch.nn.functional.embedding(input, bag.weight)
        kept = torch.ones_like(input, dtype=torch.bool) if bag.padding_idx is None else input != bag.padding_idx
        kept = kept.unsqueeze(-1)
        if bag.mode == "max":
            lowest = torch.where(kept, rows, torch.full_like(rows, -torch.inf)).amax(1)
            return torch.where(kept.any(1), lowest, torch.zeros_like(lowest))
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        total = torch.where(kept, rows, torch.zeros_like(rows)).sum(1)
        return total if bag.mode == "sum" else total / kept.sum(1).clamp(min=1).to(total.dtype)

    return forward
