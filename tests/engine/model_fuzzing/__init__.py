"""Corrupt model files on purpose, and tell what became of each.

Shared by the tests and ``bench/fuzz_models.py``; both load this folder by its path.
"""
