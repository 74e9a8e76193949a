"""Kernel search: which tilings of a model's matrix products are fastest on this machine, found by measuring.

    tune        the products of a model → the fastest tilings → machine code that is measured against the default
    ├─ products what is worth measuring in a graph
    ├─ trials   one candidate after the other in a process of its own, which may crash or hang
    └─ worker   that process: compiles a kernel, checks it against float64, times it beside the default

All tilings give the same bits, see :mod:`rerank_engine.kernels.gemm`: a search changes the time and no number.
"""
