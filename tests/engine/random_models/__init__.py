"""Random ONNX models over many operators and named dimensions, and what they must answer.

Shared by the tests and ``bench/random_models.py``; both load this folder by its path.

A model grows node by node. Every part (``elementwise``, ``layout``, ``indexing``, ``reductions``, ``products``,
``networks``, ``sizes``) works out by itself which shape a node makes, so that shapes are tested too; values carry a
bound of their magnitude, so that numbers stay where they mean something. ``examine`` converts a model, runs it at
several sizes, and compares.
"""
