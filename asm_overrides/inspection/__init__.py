"""Decides what a kernel's steady state is and what each of its cycles is for; counts, no timing.

loops.py finds loops and the path through one that most iterations take, matrix.py tells matrix
instructions apart by what flows between them, vector.py the vector arithmetic, cost.py adds up,
files.py reads anybody's code.
"""

from asm_overrides.inspection.cost import Aside, Cost, cost_of, steady_cost
from asm_overrides.inspection.files import KernelCost, inspect_file, inspect_text

__all__ = [
    "Aside",
    "Cost",
    "KernelCost",
    "cost_of",
    "inspect_file",
    "inspect_text",
    "steady_cost",
]
