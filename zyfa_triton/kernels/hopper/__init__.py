"""The attention kernel for Hopper, in Gluon, and the pass that prepares its inputs.

Nothing here is imported before a call asks for this kernel: the modules need Triton.
"""
