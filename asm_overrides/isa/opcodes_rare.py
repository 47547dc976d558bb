"""Decides the table entries of opcodes that hardly any compiler emits; table.py has the notation.

They are here so that any gfx950 code can be read and checked; the emulator executes few of them.
"""

from __future__ import annotations

from functools import partial

from asm_overrides.isa import table
from asm_overrides.isa.registers import EXEC, M0, MODE, SCC, VCC

declare = partial(table.declare, rare=True)

_LGKM = ("lgkmcnt",)
_VM = ("vmcnt",)

# Scalar: relative moves, debugger branches, calls, indexing modes.
declare("s_movrels_b32", "ws1 rs1", "salu", reads=(M0,))
declare("s_movrels_b64", "ws2 rs2", "salu", reads=(M0,))
declare("s_movreld_b32", "ws1 rs1", "salu", reads=(M0,))
declare("s_movreld_b64", "ws2 rs2", "salu", reads=(M0,))
declare("s_set_gpr_idx_on", "rs1 ri1", "salu", reads=(M0,), writes=(M0,), wait_class="special")
declare("s_set_gpr_idx_idx", "rs1", "salu", reads=(M0,), writes=(M0,), wait_class="special")
declare("s_set_gpr_idx_mode", "ri1", "salu", reads=(M0,), writes=(M0,), wait_class="special")
declare("s_set_gpr_idx_off", "", "salu", writes=(MODE,), wait_class="special")
declare("s_setvskip", "rs1 rs1", "salu", writes=(MODE,), wait_class="special")
declare("s_call_b64", "ws2 ri1", "branch")
declare("s_cbranch_{cdbgsys,cdbguser,cdbgsys_or_user,cdbgsys_and_user}", "ri1", "branch")
declare("s_rfe_b64", "rs2", "branch")
declare("s_endpgm_saved s_endpgm_ordered_ps_done", "", "special")
declare("s_sendmsghalt s_setkill s_incperflevel s_decperflevel", "ri1", "special")

# Scalar stores and atomics.
for _dwords, _suffix in ((1, ""), (2, "x2"), (4, "x4")):
    for _name, _base in (("s_store", 2), ("s_scratch_store", 2), ("s_buffer_store", 4)):
        declare(
            f"{_name}_dword{_suffix}",
            f"rs{_dwords} rs{_base} rs1",
            "smem",
            counters=_LGKM,
            access="store",
            bytes_per_lane=4 * _dwords,
        )
    declare(
        f"s_scratch_load_dword{_suffix}",
        f"ws{_dwords} rs2 rs1",
        "smem",
        counters=_LGKM,
        access="load",
        bytes_per_lane=4 * _dwords,
    )
_ATOMICS = "{add,sub,smin,smax,umin,umax,and,or,xor,swap,inc,dec}"
for _name, _base in (("s_atomic", 2), ("s_buffer_atomic", 4)):
    for _operation, _dwords in (
        (_ATOMICS, 1), (f"{_ATOMICS}_x2", 2), ("cmpswap", 2), ("cmpswap_x2", 4),
    ):  # fmt: skip
        declare(
            f"{_name}_{_operation}",
            f"bs{_dwords} rs{_base} rs1",
            "smem",
            counters=_LGKM,
            access="atomic",
            bytes_per_lane=4 * _dwords,
        )
declare("s_dcache_discard s_dcache_discard_x2", "rs2 rs1", "smem")
declare("s_atc_probe", "ri1 rs2 rs1", "smem")
declare("s_atc_probe_buffer", "ri1 rs4 rs1", "smem")

# Vector arithmetic.
declare("v_cube{id,ma,sc,tc}_f32", "wv1 rx1 rx1 rx1", "valu", reads=EXEC)
declare("v_mad_legacy_{i16,u16} v_div_fixup_legacy_f16", "wv1 rx1 rx1 rx1", "valu", reads=EXEC)
declare("v_mul_lo_i32", "wv1 rx1 rx1", "valu", cycles=16, reads=EXEC)
declare("v_qsad_pk_u16_u8 v_mqsad_pk_u16_u8", "wv2 rx2 rx1 rx2", "valu", cycles=16, reads=EXEC)
declare("v_mqsad_u32_u8", "wv4 rx2 rx1 rv4", "valu", cycles=16, reads=EXEC)
declare("v_mfma_ld_scale_b32", "rx1 rx1", "valu", wait_class="xdl")
declare("v_cvt_scalef32_2xpk16_{bf6,fp6}_f32", "wv6 rv16 rv16 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_pk32_f32_{bf6,fp6}", "wv32 rv6 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_pk32_{bf16,f16}_{bf6,fp6}", "wv16 rv6 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_pk32_{bf6,fp6}_{bf16,f16}", "wv6 rv16 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_sr_pk32_{bf6,fp6}_{bf16,f16}", "wv6 rv16 rx1 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_sr_pk32_{bf6,fp6}_f32", "wv6 rv32 rx1 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_sr_{bf8,fp8}_{bf16,f16,f32}", "bv1 rx1 rx1 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_sr_pk_fp4_{bf16,f16}", "bv1 rx1 rx1 rx1", "valu", reads=EXEC)
declare("v_cvt_scalef32_sr_pk_fp4_f32", "bv1 rx2 rx1 rx1", "valu", reads=EXEC)

# LDS atomics and queues.


def _lds(opcodes: str, notation: str, size: int) -> None:
    declare(
        opcodes, notation, "lds", cycles=8, reads=EXEC, counters=_LGKM, access="atomic",
        bytes_per_lane=size,
    )  # fmt: skip


_lds("ds_{inc,dec,rsub}_u32 ds_pk_add_{f16,bf16}", "rv1 rv1", 4)
_lds("ds_{inc,dec,rsub}_rtn_u32 ds_pk_add_rtn_{f16,bf16} ds_wrap_rtn_b32", "wv1 rv1 rv1", 4)
_lds("ds_{add,sub,rsub,inc,dec,min,max}_u64 ds_{min,max}_i64 ds_{and,or,xor}_b64", "rv1 rv2", 8)
_lds("ds_{add,min,max}_f64", "rv1 rv2", 8)
_lds(
    "ds_{add,sub,rsub,inc,dec,min,max}_rtn_u64 ds_{min,max}_rtn_i64 ds_{and,or,xor}_rtn_b64 "
    "ds_{add,min,max}_rtn_f64 ds_wrxchg_rtn_b64 ds_condxchg32_rtn_b64",
    "wv2 rv1 rv2",
    8,
)
_lds("ds_cmpst_{b32,f32} ds_mskor_b32", "rv1 rv1 rv1", 4)
_lds("ds_cmpst_rtn_{b32,f32} ds_mskor_rtn_b32", "wv1 rv1 rv1 rv1", 4)
_lds("ds_cmpst_{b64,f64} ds_mskor_b64", "rv1 rv2 rv2", 8)
_lds("ds_cmpst_rtn_{b64,f64} ds_mskor_rtn_b64", "wv2 rv1 rv2 rv2", 8)
_lds("ds_wrxchg2_rtn_b32 ds_wrxchg2st64_rtn_b32", "wv2 rv1 rv1 rv1", 4)
_lds("ds_wrxchg2_rtn_b64 ds_wrxchg2st64_rtn_b64", "wv4 rv1 rv2 rv2", 8)
for _opcodes, _notation, _access in (
    ("ds_append ds_consume", "wv1", "atomic"),
    ("ds_read_addtid_b32", "wv1", "load"),
    ("ds_write_addtid_b32", "rv1", "store"),
):
    declare(
        _opcodes, _notation, "lds", cycles=8, reads=EXEC | {M0}, counters=_LGKM, access=_access,
        bytes_per_lane=4,
    )  # fmt: skip

# Typed buffer accesses and the remaining memory atomics.
for _parts, _dwords, _half in (("x", 1, 1), ("xy", 2, 1), ("xyz", 3, 2), ("xyzw", 4, 2)):
    for _middle, _width in (("", _dwords), ("d16_", _half)):
        _size = 4 * _width if not _middle else 2 * _dwords
        declare(
            f"buffer_load_format_{_middle}{_parts}", f"wv{_width} rv1/2 rs4 rs1", "vmem",
            reads=EXEC, counters=_VM, access="load", bytes_per_lane=_size,
        )  # fmt: skip
        declare(
            f"buffer_store_format_{_middle}{_parts}", f"rv{_width} rv1/2 rs4 rs1", "vmem",
            reads=EXEC, counters=_VM, access="store", bytes_per_lane=_size,
        )  # fmt: skip
declare(
    "buffer_load_format_d16_hi_x", "bv1 rv1/2 rs4 rs1", "vmem", reads=EXEC, counters=_VM,
    access="load", bytes_per_lane=2,
)  # fmt: skip
declare(
    "buffer_store_format_d16_hi_x", "rv1 rv1/2 rs4 rs1", "vmem", reads=EXEC, counters=_VM,
    access="store", bytes_per_lane=2,
)  # fmt: skip
for _space, _before, _after, _counters in (
    ("buffer", "", " rv1/2 rs4 rs1", _VM),
    ("global", "rv1/2 ", " rs2", _VM),
    ("flat", "rv2 ", "", ("vmcnt", "lgkmcnt")),
):
    for _suffix, _width in (("", 1), ("_x2", 2)):
        declare(
            f"{_space}_atomic_{{inc,dec}}{_suffix}", f"{_before}rv{_width}{_after}", "vmem",
            reads=EXEC, counters=_counters, access="atomic", bytes_per_lane=4 * _width,
        )  # fmt: skip

# Debugger forks keep their state in VCC and SCC.
declare("s_cbranch_g_fork", "rs2 rs2", "branch", reads=(SCC, *VCC))
declare("s_cbranch_i_fork", "rs2 ri1", "branch", reads=(SCC, *VCC))
declare("s_cbranch_join", "rs2", "branch")
