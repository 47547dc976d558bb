"""The attention loop of a Hopper warpgroup: blocks of 128 keys that all of its rows see.

parameters.py says what can be asked for and which registers the loop is handed, lean_softmax.py and
exact_softmax.py how scores become P and softmax.py what both share, rows.py what is done to a
lane's rows whatever P is made of, products.py which matrix products there are, loop.py how they
follow one another, places.py where tiles are waited for. That is the loop on e4m3; the one on
bfloat16 is in the files that say so.
"""

from asm_overrides.recipes.attention_sm90.bfloat16_loop import build_bfloat16
from asm_overrides.recipes.attention_sm90.loop import build
from asm_overrides.recipes.attention_sm90.parameters import (
    Bfloat16Interface,
    Bfloat16Parameters,
    Interface,
    Parameters,
)

__all__ = [
    "Bfloat16Interface",
    "Bfloat16Parameters",
    "Interface",
    "Parameters",
    "build",
    "build_bfloat16",
]
