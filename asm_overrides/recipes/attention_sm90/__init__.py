"""The FP8 attention loop of a Hopper warpgroup: blocks of 128 keys that all of its rows see.

parameters.py says what can be asked for and which registers the loop is handed, softmax.py how
scores become P, products.py which matrix products there are, loop.py how they follow one another.
"""

from asm_overrides.recipes.attention_sm90.loop import build
from asm_overrides.recipes.attention_sm90.parameters import Interface, Parameters

__all__ = ["Interface", "Parameters", "build"]
