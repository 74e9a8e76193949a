"""Trainable global models in PyTorch: the zoo, training and export."""
