"""Caffe models: a prototxt and its caffemodel become an ONNX model, which is then imported like any other."""

from rerank_engine.importers.caffe.importer import caffe_to_onnx

__all__ = ["caffe_to_onnx"]
