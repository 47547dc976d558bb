"""The FP8 attention loop: two waves a SIMD in opposite phases, one feeding the matrix pipe.

parameters.py says what can be asked for, values.py which registers exist by name, tiles.py how K
and V travel, softmax.py how P is made, loop.py how the stages follow one another.
"""

from asm_overrides.recipes.attention_fp8.loop import build
from asm_overrides.recipes.attention_fp8.parameters import Interface, Parameters

__all__ = ["Interface", "Parameters", "build"]
