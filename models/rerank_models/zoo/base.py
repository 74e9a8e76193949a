"""What every model of the zoo has: named inputs taken from the feature spec, and standardised numbers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rerank_engine.errors import SpecError
from rerank_features import FeaturePipeline, FeatureSpec


@dataclass(frozen=True)
class InputShape:
    """An input of a model.

    Attributes
    ----------
    name
        Of the feature array.
    shape
        Without the candidate dimension.
    per_candidate
        Whether the candidate dimension stands before ``shape``.
    """

    name: str
    shape: tuple[int, ...]
    per_candidate: bool


def feature_shapes(spec: FeatureSpec) -> dict[str, InputShape]:
    """Arrays that a spec emits, by name."""
    shapes: dict[str, InputShape] = {}
    for name, shape in FeaturePipeline(spec).array_shapes().items():
        per_candidate = shape[:1] == ("N",)
        rest = tuple(int(dim) for dim in (shape[1:] if per_candidate else shape))
        shapes[name] = InputShape(name, rest, per_candidate)
    return shapes


class Standardize(nn.Module):
    """Subtract the mean and divide by the deviation seen in training; limit what lies far outside.

    Parameters
    ----------
    columns
        Width of the last dimension.
    """

    mean: Tensor
    scale: Tensor
    limit = 8.0

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))

    def fit(self, rows: Tensor) -> None:
        """Take mean and deviation from (rows, columns) training data."""
        self.mean.copy_(rows.mean(0))
        deviation = rows.std(0)
        self.scale.copy_(torch.where(deviation > 1e-6, 1.0 / deviation.clamp(min=1e-6), torch.zeros_like(deviation)))

    def forward(self, rows: Tensor) -> Tensor:
        """Standardise the last dimension."""
        return torch.clamp((rows - self.mean) * self.scale, -self.limit, self.limit)


class Ranker(nn.Module):
    """Base of the zoo.

    Attributes
    ----------
    input_names
        Feature arrays that :meth:`forward` takes, in order.

    The last layer is ``head``, a linear map to one logit, so that a user's own last layer can be learned.

    Parameters
    ----------
    spec
        Feature spec that emits the arrays.
    dropout
        Probability with which a hidden unit is dropped in training.
    """

    input_names: tuple[str, ...]
    head: nn.Linear

    def __init__(self, spec: FeatureSpec, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.shapes = feature_shapes(spec)
        missing = [name for name in self.input_names if name not in self.shapes]
        if missing:
            raise SpecError(f"{type(self).__name__} needs the feature arrays {missing}; spec {spec.name!r} lacks them")
        self.standardize = Standardize(self.shapes["dense"].shape[-1])

    def example_inputs(self, candidates: int) -> tuple[Tensor, ...]:
        """Zeros of the right shapes and dtypes, for export."""
        result = []
        for name in self.input_names:
            shape = self.shapes[name]
            full = (candidates, *shape.shape) if shape.per_candidate else shape.shape
            is_ids = name == "ids" or name.endswith("_ids")
            result.append(torch.zeros(full, dtype=torch.int32 if is_ids else torch.float32))
        return tuple(result)


def tower(sizes: list[int], dropout: float) -> nn.Sequential:
    """Linear layers with ReLU after each."""
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers)
