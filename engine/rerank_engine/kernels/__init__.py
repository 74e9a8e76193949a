"""Emitters of SIMD code: each writes one kind of loop into the function that is being compiled."""
