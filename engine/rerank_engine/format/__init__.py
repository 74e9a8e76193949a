"""The model file ``.rrm``: a graph as FlatBuffers, weights mapped behind it, and a strict reader.

>>> import numpy as np
>>> from rerank_engine.format import content_hash, model_bytes, read_model
>>> from rerank_engine.graph import Graph
>>> graph = Graph("bias", outputs=["b"])
>>> _ = graph.add_constant("b", np.zeros(4, np.float32))
>>> data = model_bytes(graph)
>>> model_bytes(read_model(data)) == data
True
"""

from rerank_engine.format.reader import ModelSource, content_hash, read_model
from rerank_engine.format.writer import model_bytes, write_model

__all__ = ["ModelSource", "content_hash", "model_bytes", "read_model", "write_model"]
