"""Decides what GPU machine code means and how it is rewritten; knows nothing of torch or Triton."""
