"""Decides the constants of the cycle model and says where each comes from; computes no time.

Cycles of an instruction on its port stand in the one instruction table (asm_overrides/isa); here is
what the table has no room for. Trust: D vendor documentation or LLVM source, M measured by somebody
on the card and published, R derived from those, F fitted on a kernel of others, ? assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from asm_overrides.inspection.loops import cycles
from asm_overrides.inspection.operands import vector_ids
from asm_overrides.isa.instruction import Instruction

VECTOR_PORTS = ("valu", "trans")


@dataclass(frozen=True)
class Constants:
    """Cycles, unless a name says otherwise.

    Attributes:
        slot: between two instructions of one wave.
        permlane: on the vector port, for v_permlane32_swap and v_permlane16_swap.
        vector_result: from a vector instruction to its dependent.
        transcendental_result: the same for exponentials and their like.
        matrix_result_slots: slots beyond a matrix instruction's passes until anything but its own
            accumulator chain may use its result.
        packed_after_matrix: how long after a matrix instruction's last cycle packed float32
            arithmetic of the same wave may start.
        packed_waits_for_other: whether it also waits for matrix instructions of the other wave.
        matrix_holds_vector: share of the operand reading of a matrix instruction, during which its
            own wave issues no vector instruction, for which it keeps out the other wave, too.
        lds_latency: from the start of an LDS instruction's service to its result.
        lds_queue: LDS instructions of one SIMD that wait or are served at a time.
        vmem_latency, smem_latency: from issue to result.
        barrier: from the last wave's arrival until waves go on.
    """

    slot: int = 4
    permlane: int = 20
    vector_result: int = 4
    transcendental_result: int = 12
    matrix_result_slots: int = 4
    packed_after_matrix: int = 12
    packed_waits_for_other: bool = True
    matrix_holds_vector: float = 0.0
    lds_latency: int = 64
    lds_queue: int = 4
    vmem_latency: int = 500
    smem_latency: int = 200
    barrier: int = 4

    def port_cycles(self, instruction: Instruction) -> int:
        """Cycles of an instruction on its port."""
        if instruction.opcode in ("v_permlane32_swap_b32", "v_permlane16_swap_b32"):
            return self.permlane
        return cycles(instruction)

    def matrix_read(self, instruction: Instruction) -> int:
        """Cycles for which a matrix instruction keeps its own wave's vector work from issuing."""
        data = max(len(vector_ids(operand)) for operand in instruction.operands[1:3])
        return self.slot * (1 + data // 4)


SOURCES: dict[str, tuple[str, str]] = {
    "slot": ("D", "a wave issues in order; a vector instruction takes four cycles"),
    "permlane": ("M", "published micro-benchmark of v_permlane32_swap"),
    "vector_result": ("M", "published micro-benchmark: back-to-back dependents"),
    "transcendental_result": ("D", "8 on the port and LLVM's one wait state before a VALU reader"),
    "matrix_result_slots": ("D", "LLVM's wait states: 20 for 16 passes, 12 for 8, 8 for 4"),
    "packed_after_matrix": ("M", "packed FP32 waits for a running fp8 MFMA to reach cycle 76"),
    "packed_waits_for_other": ("?", "likely; AITER v3 FP8 does not tell, see docs/cycle-model.md"),
    "matrix_holds_vector": ("F", "AITER v3 FP8, see docs/cycle-model.md"),
    "lds_latency": ("M", "50 to 70 to the first return"),
    "lds_queue": ("R", "FIFO of 8 a pair of SIMDs, whose waves are in the same state"),
    "vmem_latency": ("?", "L2 hit; loops that load several tiles ahead do not see it"),
    "smem_latency": ("?", "no steady state here has scalar loads"),
    "barrier": ("M", "about 4; AITER v3 FP8 allows no more, see docs/cycle-model.md"),
}
"""Trust and source of each constant."""

DEFAULT = Constants()
