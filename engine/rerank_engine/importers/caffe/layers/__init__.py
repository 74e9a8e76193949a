"""Layer types, one function each, by family."""

from rerank_engine.importers.caffe.layers import activations, arithmetic, layout, products, spatial
from rerank_engine.importers.caffe.layers.registry import LAYERS, LayerType

__all__ = ["LAYERS", "LayerType", "activations", "arithmetic", "layout", "products", "spatial"]
