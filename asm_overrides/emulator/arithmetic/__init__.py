"""What gfx950 arithmetic computes: pure NumPy functions, one for each opcode.

No state, no parsing, no EXEC, no memory: the caller selects lanes, fetches operands and writes
results.

Opcodes are bare names, without `_e32`, `_e64`, `_dpp` or `_sdwa`.  The caller holds one
`np.errstate(all="ignore")` round its whole run; nothing here opens one.

Arrays
    A 32-bit vector operand is a uint32 array that broadcasts to (waves, 64): a VGPR is
    v[r, waves], an SGPR s[r, waves][:, None], a constant (1, 1).  An operand of n > 1 registers is
    uint32 and broadcasts to (n, waves, 64), low register first: v[r : r + n, waves] without a copy.
    A mask operand (VCC or an SGPR pair used lane by lane) is a bool array (waves, 64).
    Inputs are never written to; results are fresh arrays or views of inputs, in any shape that
    broadcasts to the operand's, so `v[r, waves] = result` or `np.copyto(v[r, waves], result,
    where=exec_mask)` always works.  All 64 lanes are computed whatever EXEC says.
    Scalar operations have no lane axis: (waves,) uint32, (n, waves) for n registers, SCC bool
    (waves,).

Operand kinds
    Each operation lists the kinds of its `results` and `sources`.  `registers(kind)` tells how many
    registers a kind takes: 1 for b32 u32 i32 f32, for b16 u16 i16 f16 bf16 and for packed pairs of
    those (pb16 pu16 pi16 pf16 pbf16); 2 for b64 u64 i64 f64 and for packed 32-bit pairs, of which
    op_sel chooses words (pb32 pf32); 0 for mask.  `b256`, say, takes 8.  `constant(kind, value)`
    encodes a number written in the text (an int, or a float as in `1.0`) for an operand of that
    kind, in the shape above.

Vector ALU
    operation = bind_valu(opcode, modifiers, machine=DEFAULT_MACHINE)      # once an instruction
    value = operation(mode, *sources)                       # one result: an array
    value, mask = operation(mode, *sources)                 # two results: a tuple
    value = operation(mode, *sources, old=v[dst])           # if operation.needs_old
    Sources come in the order of the text without destinations, also for v_fmamk and v_fmaak; an
    implicit VCC source (v_div_fmas) comes last, as a mask.  `needs_old` is true where the old
    destination takes part: v_fmac, v_dot2c, writes of a half or a byte that keep the rest (but the
    bytes that v_cvt_pk_u8_f32 keeps are an ordinary source).  v_swap_b32 and the v_permlane*_swap
    take both registers as sources and return both.  `operation.results` and `.sources` hold the
    kinds.
    Not here: v_readlane, v_readfirstlane, v_writelane (lanes.py has helpers), v_nop, stochastic
    rounding.

    `modifiers` is a mapping; absent means the default.
        neg, abs         tuples of bool, one a source (the `-v1` and `|v1|` of the text)
        op_sel, op_sel_hi, neg_lo, neg_hi   tuples of int as printed
        clamp            True
        mul, div         2 or 4; 2
        bitop3           int
        dst_sel, dst_unused, src0_sel, src1_sel   SDWA names as printed, "WORD_1", "UNUSED_PAD"
        sext             tuple of bool, SDWA's sext(v1)
    DPP modifiers are not looked at: permute source 0 first, lanes.dpp_map(modifiers) says how.
    Keys that have no meaning for the opcode are ignored except clamp, mul and div, which raise.

    `mode` is Mode.from_bits(value of the MODE register), cached.  Round-to-nearest only; other
    rounding modes raise UnsupportedArithmetic when the mode is made.

Scalar ALU
    operation = SALU[opcode]
    value, scc = operation(*sources, scc=scc, old=old)
    Pass scc if `operation.reads_scc`, old (the old destination) if `operation.needs_old`; scc in
    the answer is None unless `operation.writes_scc`; value is None for compares.  64-bit results
    are (2, waves).  s_*_saveexec take (source, exec) and return ((old exec, new exec), scc).
    16-bit immediates of s_movk, s_addk, s_mulk, s_cmovk and s_cmpk may be passed as printed (0xffff
    or -1): they are extended here.

Matrix
    operation = bind_matrix(opcode, modifiers, machine=DEFAULT_MACHINE)
    d = operation(mode, a, b, c)                    # (registers, waves, 64) uint32
    d = operation(mode, a, b, c, scale_a, scale_b)  # v_mfma_scale_*; scales (waves, 64)
    d = operation(mode, a, b, c, index)             # v_smfmac_*; c is the old destination
    operation.registers: Registers(a, b, c), each a register count.  c may broadcast (constant 0 is
    (1, 1, 1)).  EXEC and MODE do not matter.
    operation.matrices(a, b) -> (A (waves, blocks, m, k), B (waves, blocks, n, k)): the codes as
    uint8 (fp8, bf8, fp6, bf6, fp4, int8), uint16 (fp16, bf16), uint32 or uint64, for observers.
    Modifiers used: cbsz, abid, blgp, op_sel and op_sel_hi (scale bytes).

Unknown opcodes raise UnknownOpcode, naming them.
"""

from .assumptions import DEFAULT_MACHINE, Machine
from .binding import BoundOperation
from .lanes import (
    LaneMap,
    dpp_map,
    first_lane,
    is_dpp,
    pack_mask,
    swizzle_map,
    unpack_mask,
)
from .matrix import BoundMatrix, bind_matrix
from .mode import Mode
from .operands import UnknownOpcode, UnsupportedArithmetic, constant, registers
from .salu import SALU, ScalarOperation
from .valu import VALU, bind_valu

__all__ = [
    "DEFAULT_MACHINE",
    "SALU",
    "VALU",
    "BoundMatrix",
    "BoundOperation",
    "LaneMap",
    "Machine",
    "Mode",
    "ScalarOperation",
    "UnknownOpcode",
    "UnsupportedArithmetic",
    "bind_matrix",
    "bind_valu",
    "constant",
    "dpp_map",
    "first_lane",
    "is_dpp",
    "pack_mask",
    "registers",
    "swizzle_map",
    "unpack_mask",
]
