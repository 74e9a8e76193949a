"""A whole model from its image, to be checked and timed."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank_engine.binding import bind_sizes
from rerank_engine.dimensions import Dim
from rerank_engine.errors import CompileError
from rerank_engine.graph import CANDIDATES
from rerank_engine.image import Image
from rerank_engine.interface import difference
from rerank_engine.session import MachineCode, Session


class ModelCall:
    """A model that is called with its sample, whose rows are repeated up to a number of candidates.

    Raises
    ------
    CompileError
        The model has no sample, or the code may not run.
    """

    def __init__(self, image: Image, candidates: int) -> None:
        code = MachineCode(image)
        if code.interface.sample is None:
            raise CompileError("the model has no sample to be checked by")
        self._sample = code.interface.sample
        self._session = Session(code)
        self._sizes = bind_sizes(code.interface.inputs, self._sample.inputs, code.interface.maxima)
        self._repeated = {
            value.name: _repeated(self._sample.inputs[value.name], value.shape, self._sizes, candidates)
            for value in code.interface.inputs
        }
        self._wanted = {**self._sizes, CANDIDATES: candidates}

    def error(self) -> str:
        """Where the answer differs from the sample's; empty when it does not."""
        return difference(self._sample, self._session.run(self._sample.inputs, self._sizes))

    def time_ns(self, times: int) -> float:
        """Nanoseconds of one of ``times`` calls."""
        session, inputs = self._session, self._repeated
        session.run(inputs, self._wanted)  # makes room, and warms what another model has cooled
        started = perf_counter_ns()
        for _ in range(times):
            if session.run_directly(inputs, None) is None:
                session.run(inputs, self._wanted)
        return (perf_counter_ns() - started) / times


def _repeated(
    array: NDArray[Any], shape: tuple[int | Dim, ...], sizes: dict[str, int], candidates: int
) -> NDArray[Any]:
    """The array for another number of candidates; rows that there are not yet repeat those that there are."""
    for axis, dim in enumerate(shape):
        if isinstance(dim, Dim) and CANDIDATES in dim.names:
            size = dim.evaluate({**sizes, CANDIDATES: candidates})
            array = np.take(array, np.arange(size) % array.shape[axis], axis=axis)
    return np.ascontiguousarray(array)
