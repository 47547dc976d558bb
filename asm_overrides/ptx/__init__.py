"""PTX for Hopper (sm_90a) as text: registers by name, matrix products, barriers.

Registers of PTX are virtual: ptxas assigns them, orders instructions and waits for results. So
nothing here schedules; what a loop decides is which instructions there are and where waits for
matrix products and barriers stand.
"""

from asm_overrides.ptx.text import Text, hexadecimal, vector

__all__ = ["Text", "hexadecimal", "vector"]
