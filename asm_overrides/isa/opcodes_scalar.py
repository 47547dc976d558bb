"""Decides the table entries of scalar, branch and control opcodes; table.py has the notation."""

from __future__ import annotations

from asm_overrides.isa.registers import EXEC, MODE, SCC, VCC
from asm_overrides.isa.table import declare

_SETS_SCC = (SCC,)

# Two sources, SCC written.
declare(
    "s_{add,sub}_{u32,i32} s_{min,max}_{i32,u32} s_{and,or,xor,andn2,orn2,nand,nor,xnor}_b32 "
    "s_{lshl,lshr}_b32 s_ashr_i32 s_bfe_{u32,i32} s_absdiff_i32 s_lshl{1,2,3,4}_add_u32",
    "ws1 rs1 rs1",
    "salu",
    writes=_SETS_SCC,
)
declare("s_addc_u32 s_subb_u32", "ws1 rs1 rs1", "salu", reads=_SETS_SCC, writes=_SETS_SCC)
declare("s_{and,or,xor,andn2,orn2,nand,nor,xnor}_b64", "ws2 rs2 rs2", "salu", writes=_SETS_SCC)
declare("s_{lshl,lshr}_b64 s_ashr_i64 s_bfe_{u64,i64}", "ws2 rs2 rs1", "salu", writes=_SETS_SCC)

# Two sources, SCC left alone.
declare("s_bfm_b32 s_mul_i32 s_mul_hi_{u32,i32} s_pack_{ll,lh,hh}_b32_b16", "ws1 rs1 rs1", "salu")
declare("s_bfm_b64", "ws2 rs1 rs1", "salu")
declare("s_cselect_b32", "ws1 rs1 rs1", "salu", reads=_SETS_SCC)
declare("s_cselect_b64", "ws2 rs2 rs2", "salu", reads=_SETS_SCC)

# One source.
declare(
    "s_mov_b32 s_brev_b32 s_sext_i32_{i8,i16} s_ff{0,1}_i32_b32 s_flbit_i32_b32 s_flbit_i32",
    "ws1 rs1",
    "salu",
)
declare("s_mov_b64 s_brev_b64", "ws2 rs2", "salu")
declare("s_cmov_b32", "bs1 rs1", "salu", reads=_SETS_SCC)
declare("s_cmov_b64", "bs2 rs2", "salu", reads=_SETS_SCC)
declare("s_{not,wqm,quadmask}_b32 s_abs_i32", "ws1 rs1", "salu", writes=_SETS_SCC)
declare("s_{not,wqm,quadmask}_b64", "ws2 rs2", "salu", writes=_SETS_SCC)
declare("s_bcnt{0,1}_i32_b32", "ws1 rs1", "salu", writes=_SETS_SCC)
declare("s_bcnt{0,1}_i32_b64", "ws1 rs2", "salu", writes=_SETS_SCC)
declare("s_ff{0,1}_i32_b64 s_flbit_i32_b64 s_flbit_i32_i64", "ws1 rs2", "salu")
declare("s_bitset{0,1}_b32", "bs1 rs1", "salu")
declare("s_bitset{0,1}_b64", "bs2 rs1", "salu")
declare("s_bitreplicate_b64_b32", "ws2 rs1", "salu")
declare(
    "s_{and,or,xor,andn1,andn2,orn1,orn2,nand,nor,xnor}_saveexec_b64 s_{andn1,andn2}_wrexec_b64",
    "ws2 rs2",
    "salu",
    reads=EXEC,
    writes=(SCC, *EXEC),
)

# Immediate forms.
declare("s_movk_i32", "ws1 ri1", "salu")
declare("s_cmovk_i32", "bs1 ri1", "salu", reads=_SETS_SCC)
declare("s_addk_i32", "bs1 ri1", "salu", writes=_SETS_SCC)
declare("s_mulk_i32", "bs1 ri1", "salu")
declare("s_cmpk_{eq,lg,gt,ge,lt,le}_{i32,u32}", "rs1 ri1", "salu", writes=_SETS_SCC)

# Comparisons.
declare(
    "s_cmp_{eq,lg,gt,ge,lt,le}_{i32,u32} s_bitcmp{0,1}_b32", "rs1 rs1", "salu", writes=_SETS_SCC
)
declare("s_cmp_{eq,lg}_u64", "rs2 rs2", "salu", writes=_SETS_SCC)
declare("s_bitcmp{0,1}_b64", "rs2 rs1", "salu", writes=_SETS_SCC)

# Hardware registers.
declare("s_getreg_b32", "ws1 ri1", "salu", reads=(MODE,), wait_class="special")
declare("s_setreg_b32", "wi1 rs1", "salu", reads=(MODE,), writes=(MODE,), wait_class="special")
declare(
    "s_setreg_imm32_b32", "wi1 ri1", "salu", reads=(MODE,), writes=(MODE,), wait_class="special"
)

# Program flow.
declare("s_getpc_b64", "ws2", "branch")
declare("s_setpc_b64", "rs2", "branch")
declare("s_swappc_b64", "ws2 rs2", "branch")
declare("s_branch", "ri1", "branch")
declare("s_cbranch_scc{0,1}", "ri1", "branch", reads=_SETS_SCC)
declare("s_cbranch_{vccz,vccnz}", "ri1", "branch", reads=VCC)
declare("s_cbranch_{execz,execnz}", "ri1", "branch", reads=EXEC)
declare("s_endpgm s_barrier s_wakeup s_icache_inv", "", "special")
declare("s_waitcnt s_nop s_setprio s_sleep s_sethalt s_trap s_sendmsg", "ri1", "special")
declare("s_ttracedata", "", "special")

# Scalar memory: destination, base, offset.
for _dwords in (1, 2, 4, 8, 16):
    _suffix = "" if _dwords == 1 else f"x{_dwords}"
    for _name, _base in (("s_load", 2), ("s_buffer_load", 4)):
        declare(
            f"{_name}_dword{_suffix}",
            f"ws{_dwords} rs{_base} rs1",
            "smem",
            counters=("lgkmcnt",),
            access="load",
            bytes_per_lane=4 * _dwords,
        )
declare("s_memtime s_memrealtime", "ws2", "smem", counters=("lgkmcnt",))
declare("s_dcache_inv s_dcache_wb s_dcache_inv_vol s_dcache_wb_vol", "", "smem")
