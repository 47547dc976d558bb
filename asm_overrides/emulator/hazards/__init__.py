"""Decides which wait states gfx950 demands that the hardware does not enforce itself.

`required_wait_states` answers for one pair, `find_hazards` for a whole program. Knows nothing of
execution, counters or memory.
"""

from asm_overrides.emulator.hazards.analysis import Hazard, find_hazards, required_wait_states
from asm_overrides.emulator.hazards.rules import RULES, Rule

__all__ = ["RULES", "Hazard", "Rule", "find_hazards", "required_wait_states"]
