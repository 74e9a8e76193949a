"""Corrupt sources (ONNX, LightGBM, XGBoost, TFLite, Caffe) on purpose, and tell what convert made of each.

Shared by the tests and ``bench/fuzz_sources.py``; both load this folder, and its neighbour ``model_fuzzing``, by their
paths. PyTorch modules and SavedModels are left out: other packages parse those.
"""
