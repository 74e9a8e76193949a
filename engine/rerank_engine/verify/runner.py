"""What a verification asks of a source framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rerank_engine.ops.registry import Array


@dataclass(frozen=True)
class SourceLayer:
    """A value that the source names, and what makes it there.

    Attributes
    ----------
    value
        Name of the value; the same as in the converted graph.
    node
        Name of the node or layer in the source file.
    operator
        Its kind, in the source's words.
    """

    value: str
    node: str
    operator: str


@runtime_checkable
class SourceRunner(Protocol):
    """A framework that runs the source model.

    Attributes
    ----------
    name
        Framework and version.
    outputs
        Names of the model's outputs.
    layers
        Every value that the source can name, in the order in which they are computed.
    """

    name: str
    outputs: Sequence[str]
    layers: Sequence[SourceLayer]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute all outputs, and the intermediate values that can be had, by name.

        Parameters
        ----------
        inputs
            An array for each input of the converted model.

        Raises
        ------
        Exception
            Any: the source refuses these inputs. The message is shown.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; a later call of :meth:`run` may take it again."""
        ...
