"""Numbers that every machine's softmax shares; they are those of the numerics contract.

Lean codes: P's e4m3 code is linear in the score, 8 codes an octave, the row's reference at code
126. Exact P: 2^8 at the reference. An offset is lowered by 2^-22 of its size, so that no rounding
lifts a code above the top one.
"""

from __future__ import annotations

TOP_CODE = 126
CODES_PER_OCTAVE = 8
EXACT_OCTAVES = 8.0
LOWERED_BY = 2.0**-22
CODE_UNIT = 2.0**-24  # a code as float16: its smallest subnormal. Hopper makes codes so
