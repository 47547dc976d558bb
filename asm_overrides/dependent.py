"""Decides which neighbouring instructions depend on each other, so that swapping them is a mistake.

It plants the swap (see mutate.py) and does not judge what the checks make of it.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from asm_overrides.emulator.flow import control_flow
from asm_overrides.emulator.waits import is_lds_load
from asm_overrides.isa import Constant, Instruction, Program, Register, parse, registers
from asm_overrides.mutate import Mutation

SWAPPED = "swapped"
"""Two instructions of which one needs the other's result, or destroys what the other needs."""

GUARD_SWAPPED = "guard-swapped"
"""A wait, a nop or a barrier and the instruction that must stand behind it or in front of it."""

_GUARDS = ("s_waitcnt", "s_nop", "s_barrier")

_STATE = frozenset((*registers.EXEC, registers.MODE))
"""Read by nearly everything; they count by who writes them, not by who may read them later."""

_EXACT_REDUCTIONS = {
    **dict.fromkeys(("v_max_f32", "v_max3_f32", "v_max_i32", "v_max3_i32"), "max"),
    **dict.fromkeys(("v_min_f32", "v_min3_f32", "v_min_i32", "v_min3_i32"), "min"),
    **dict.fromkeys(("v_add_u32", "v_add3_u32", "s_add_u32", "s_add_i32"), "add"),
    **dict.fromkeys(("v_sub_u32", "s_sub_u32", "s_sub_i32"), "add"),
    **dict.fromkeys(("v_and_b32", "s_and_b32"), "and"),
    **dict.fromkeys(("v_or_b32", "v_or3_b32", "s_or_b32"), "or"),
    **dict.fromkeys(("v_xor_b32", "s_xor_b32"), "xor"),
}
"""Operations whose order does not matter: instruction -> what it accumulates."""


def swaps(text: str) -> list[Mutation]:
    """Every swap of two neighbours that depend on each other, in program order.

    A pair that continues one exact reduction in the same register (a maximum, an integer sum) is
    left out: the register holds the same in either order. So is a register or flag that both write
    and nothing reads afterwards.
    """
    program = parse(text)
    code = program.instructions
    live = _live_behind(program)
    loads = (each.writes for each in code if each.spec.counters and each.spec.access != "store")
    loaded = frozenset[int]().union(*loads)
    found: list[Mutation] = []
    counts = {SWAPPED: 0, GUARD_SWAPPED: 0}
    for index, (first, second) in enumerate(pairwise(code)):
        if _is_guard_pair(first, second, loaded):
            kind = GUARD_SWAPPED
        elif _depend(first, second, live[index + 1]):
            kind = SWAPPED
        else:
            continue
        name = f"{kind}-{counts[kind]}"
        counts[kind] += 1
        found.append(Mutation(name, kind, first.line, first.text, second.text, second.line))
    return found


def _is_guard_pair(first: Instruction, second: Instruction, loaded: frozenset[int]) -> bool:
    """True if one of the two only orders what the other does.

    A nop belongs in front of something, a wait in front of a barrier or of what touches registers
    that loads write, a barrier between accesses.
    """
    if first.opcode == "s_nop":
        return second.opcode not in ("s_waitcnt", "s_nop")
    if first.opcode == "s_waitcnt":
        touched = second.reads | second.writes
        return second.opcode == "s_barrier" or not touched.isdisjoint(loaded)
    barrier, other = (first, second) if first.opcode == "s_barrier" else (second, first)
    return barrier.opcode == "s_barrier" and _touches_lds(other)


def _touches_lds(instruction: Instruction) -> bool:
    return instruction.spec.port == "lds" or is_lds_load(instruction)


def _depend(first: Instruction, second: Instruction, live: int) -> bool:
    if first.opcode in _GUARDS or second.opcode in _GUARDS or first.spec.port == "branch":
        return False
    if _same_reduction(first, second, live):
        return False
    flow = (first.writes & second.reads) | (first.reads & second.writes)
    if flow or _lds_conflict(first, second):
        return True
    return bool(_mask(first.writes & second.writes) & live)


def _lds_conflict(first: Instruction, second: Instruction) -> bool:
    """A store to LDS beside any access; LDS-direct loads only meet others behind a barrier."""
    stores = [each.spec.port == "lds" and each.spec.access == "store" for each in (first, second)]
    return any(stores) and first.spec.port == second.spec.port == "lds"


def _same_reduction(first: Instruction, second: Instruction, live: int) -> bool:
    operation = _EXACT_REDUCTIONS.get(first.opcode)
    if operation is None or _EXACT_REDUCTIONS.get(second.opcode) != operation:
        return _integer_step(first, second)
    target = first.operands[0]
    if not isinstance(target, Register) or target != second.operands[0]:
        return False
    if _mask(first.writes & second.writes - frozenset(target.ids)) & live:
        return False  # the flags differ
    for each in (first, second):
        sources = [source for source in each.operands[1:] if isinstance(source, Register)]
        if sum(not set(source.ids).isdisjoint(target.ids) for source in sources) != 1:
            return False
        if any(source.negate or source.absolute for source in sources):
            return False
        if "_sub_" in each.opcode and each.operands[1] != target:
            return False
    return True


_ROUNDING = ("v_ceil_f32", "v_floor_f32", "v_trunc_f32", "v_rndne_f32")
_CLAMPS = ("v_max_f32", "v_min_f32")


def _integer_step(first: Instruction, second: Instruction) -> bool:
    """True for rounding to integers and a clamp at an integer, in place: they commute."""
    if first.opcode in _CLAMPS:
        first, second = second, first
    if first.opcode not in _ROUNDING or second.opcode not in _CLAMPS:
        return False
    target = first.operands[0]
    constants = [each for each in second.operands[1:] if isinstance(each, Constant)]
    others = [each for each in second.operands if not isinstance(each, Constant)]
    if len(constants) != 1 or any(each != target for each in (first.operands[1], *others)):
        return False
    value = struct.unpack("<f", struct.pack("<I", int(constants[0].value) & 0xFFFFFFFF))[0]
    return bool(value == int(value))


def _mask(ids: frozenset[int]) -> int:
    mask = 0
    for each in ids - _STATE:
        mask |= 1 << each
    return mask


def _live_behind(program: Program) -> list[int]:
    """Registers that may still be read behind each instruction, as bits.

    Whatever a text without an end leaves counts as read.
    """
    code = program.instructions
    flow = control_flow(code, program.labels)
    reads = [_mask(each.reads) for each in code]
    writes = [_mask(each.writes) for each in code]
    ways_out = _ways_out(program)
    behind = [-1 if index in ways_out else 0 for index in range(len(code))]
    work = set(range(len(code)))
    while work:
        index = max(work)
        work.discard(index)
        live = reads[index] | (behind[index] & ~writes[index])
        for place in flow.predecessors[index]:
            if live | behind[place] != behind[place]:
                behind[place] |= live
                work.add(place)
    return behind


def _ways_out(program: Program) -> set[int]:
    count = len(program.instructions)
    targets = {name for name, place in program.labels.items() if place == count}

    def leaves(index: int, instruction: Instruction) -> bool:
        if index == count - 1 and instruction.opcode not in ("s_branch", "s_endpgm"):
            return True
        return instruction.spec.port == "branch" and str(instruction.operands[-1]) in targets

    return {index for index, each in enumerate(program.instructions) if leaves(index, each)}
