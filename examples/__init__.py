"""Kernels written with `zyfa_triton.language`. Nothing imports these; tests run them."""
