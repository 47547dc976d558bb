"""The Triton kernels: what is computed. Which one runs, and where, is decided in
`zyfa_triton.dispatch`."""
