"""Decides the number by which each gfx950 register is known; does not say who may use it.

One flat numbering serves decode, hazard checks, allocation and the emulator:

    0..255     v0..v255
    256..511   a0..a255 (accumulation registers)
    512..639   scalar registers by their hardware encoding: s0..s101 are 512..613, then named
    640..      single-bit and mode state that is not addressable as an operand
"""

from __future__ import annotations

VGPR = 0
AGPR = 256
SGPR = 512

FLAT_SCRATCH_LO = SGPR + 102
FLAT_SCRATCH_HI = SGPR + 103
XNACK_MASK_LO = SGPR + 104
XNACK_MASK_HI = SGPR + 105
VCC_LO = SGPR + 106
VCC_HI = SGPR + 107
TTMP = SGPR + 108
M0 = SGPR + 124
EXEC_LO = SGPR + 126
EXEC_HI = SGPR + 127
SCC = SGPR + 128
MODE = SGPR + 129

COUNT = SGPR + 130
"""How many register numbers there are; every id is below it."""

SGPR_COUNT = 102
"""Ordinary scalar registers s0..s101."""

SCALAR_SLOTS = 128
"""Scalar registers addressable by encoding, named ones included."""

VCC = frozenset((VCC_LO, VCC_HI))
EXEC = frozenset((EXEC_LO, EXEC_HI))

NAMED: dict[str, tuple[int, int]] = {
    "vcc": (VCC_LO, 2),
    "vcc_lo": (VCC_LO, 1),
    "vcc_hi": (VCC_HI, 1),
    "exec": (EXEC_LO, 2),
    "exec_lo": (EXEC_LO, 1),
    "exec_hi": (EXEC_HI, 1),
    "m0": (M0, 1),
    "flat_scratch": (FLAT_SCRATCH_LO, 2),
    "flat_scratch_lo": (FLAT_SCRATCH_LO, 1),
    "flat_scratch_hi": (FLAT_SCRATCH_HI, 1),
    "xnack_mask": (XNACK_MASK_LO, 2),
    "xnack_mask_lo": (XNACK_MASK_LO, 1),
    "xnack_mask_hi": (XNACK_MASK_HI, 1),
    "scc": (SCC, 1),
    "src_scc": (SCC, 1),
}
"""Named registers as the assembler spells them: first id and number of dwords."""

_NAME_OF = {first: name for name, (first, count) in NAMED.items() if count == 1}
_NAME_OF[SCC] = "scc"
_NAME_OF[MODE] = "mode"

_FILES = {"v": (VGPR, 256), "a": (AGPR, 256), "s": (SGPR, SGPR_COUNT), "ttmp": (TTMP, 16)}


def register_id(file: str, index: int) -> int:
    """Number of a register such as ("v", 7); ValueError if the file has no such register."""
    base, count = _FILES[file]
    if not 0 <= index < count:
        raise ValueError(f"register {file}{index} does not exist: {file} has 0..{count - 1}")
    return base + index


def register_name(register: int) -> str:
    """Assembler name of a register number, for messages."""
    if register < AGPR:
        return f"v{register}"
    if register < SGPR:
        return f"a{register - AGPR}"
    if register in _NAME_OF:
        return _NAME_OF[register]
    if register < SGPR + SGPR_COUNT:
        return f"s{register - SGPR}"
    if TTMP <= register < M0:
        return f"ttmp{register - TTMP}"
    return f"register{register}"


def is_vector(register: int) -> bool:
    """True for VGPRs and AGPRs."""
    return register < SGPR


def is_scalar(register: int) -> bool:
    """True for SGPRs and the named scalar registers, SCC and MODE excluded."""
    return SGPR <= register < SCC
