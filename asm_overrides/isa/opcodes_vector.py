"""Decides the table entries of vector arithmetic opcodes; see table.py for the notation."""

from __future__ import annotations

from asm_overrides.isa.registers import EXEC, VCC
from asm_overrides.isa.table import declare

_VECTOR = frozenset(EXEC)


def _valu(opcodes: str, notation: str, **properties: object) -> None:
    reads = frozenset(properties.pop("reads", ())) | _VECTOR  # type: ignore[call-overload]
    declare(opcodes, notation, "valu", reads=reads, **properties)  # type: ignore[arg-type]


# One 32-bit source.
_valu(
    "v_mov_b32 v_not_b32 v_bfrev_b32 v_ffbh_{u32,i32} v_ffbl_b32 "
    "v_cvt_f32_{f16,i32,u32} v_cvt_{f16,i32,u32}_f32 v_cvt_f16_{u16,i16} v_cvt_{u16,i16}_f16 "
    "v_cvt_f32_ubyte{0,1,2,3} v_cvt_off_f32_i4 v_cvt_f32_bf16 v_cvt_f32_{fp8,bf8} "
    "v_cvt_{rpi,flr}_i32_f32 v_cvt_norm_{i16,u16}_f16 "
    "v_{fract,trunc,ceil,rndne,floor,frexp_mant}_{f32,f16} "
    "v_frexp_exp_i32_f32 v_frexp_exp_i16_f16 v_sat_pk_u8_i16 "
    "v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32 v_prng_b32 "
    "v_screen_partition_4se_b32",
    "wv1 rx1",
)
_valu("v_nop v_clrexcp", "")
_valu("v_swap_b32", "bv1 bv1")
_valu("v_permlane{16,32}_swap_b32", "bv1 bv1", cycles=20)  # measured on the card, published
_valu("v_mov_b64", "wv2 rx2")
_valu(
    "v_cvt_f64_{f32,i32,u32}",
    "wv2 rx1",
    cycles=8,
)
_valu(
    "v_cvt_{f32,i32,u32}_f64 v_frexp_exp_i32_f64",
    "wv1 rx2",
    cycles=8,
)
_valu(
    "v_{fract,trunc,ceil,rndne,floor,frexp_mant,rcp,rsq,sqrt}_f64",
    "wv2 rx2",
    cycles=8,
)
_valu("v_cvt_pk_f32_{fp8,bf8}", "wv2 rx1")

declare(
    "v_{exp,log,rcp,rsq,sqrt,sin,cos}_{f32,f16} v_rcp_iflag_f32 v_{exp,log}_legacy_f32",
    "wv1 rx1",
    "trans",
    cycles=8,
    reads=_VECTOR,
)

# Two 32-bit sources.
_valu(
    "v_{add,sub,subrev,mul,min,max}_{f32,f16} v_mul_legacy_f32 v_{ldexp}_{f32,f16} "
    "v_{add,sub,subrev}_{u32,u16} v_{add,sub}_i32 v_{add,sub}_i16 "
    "v_mul_{i32_i24,u32_u24,hi_i32_i24,hi_u32_u24} v_{min,max}_{i32,u32,i16,u16} v_mul_lo_u16 "
    "v_{and,or,xor,xnor}_b32 v_{lshlrev,lshrrev}_{b32,b16} v_ashrrev_{i32,i16} "
    "v_cvt_pkrtz_f16_f32 v_cvt_pk_{u16_u32,i16_i32} v_cvt_pknorm_{i16,u16}_{f32,f16} "
    "v_cvt_pkaccum_u8_f32 v_pack_b32_f16 v_bfm_b32 v_bcnt_u32_b32 v_mbcnt_{lo,hi}_u32_b32 "
    "v_cvt_pk_bf16_f32 v_cvt_pk_f16_f32 v_cvt_scalef32_f32_{fp8,bf8}",
    "wv1 rx1 rx1",
)
_valu("v_mul_{lo,hi}_u32 v_mul_hi_i32", "wv1 rx1 rx1", cycles=16)
_valu("v_{lshlrev,lshrrev}_b64 v_ashrrev_i64", "wv2 rx1 rx2", cycles=8)
_valu("v_{add,mul,min,max}_f64", "wv2 rx2 rx2", cycles=8)
_valu("v_ldexp_f64 v_trig_preop_f64", "wv2 rx2 rx1", cycles=8)

# Read-modify-write of the destination.
_valu("v_fmac_f32 v_mac_f16 v_dot2c_f32_{f16,bf16} v_dot4c_i32_i8", "bv1 rx1 rx1")
_valu("v_dot8c_i32_i4 v_dot2c_i32_i16 v_pk_fmac_f16", "bv1 rx1 rx1")
_valu("v_fmac_f64", "bv2 rx2 rx2", cycles=8)
_valu("v_fmamk_f32 v_madmk_f16", "wv1 rx1 ri1 rv1")
_valu("v_fmaak_f32 v_madak_f16", "wv1 rx1 rv1 ri1")
# Writes one half or byte of the destination and keeps the rest.
_valu("v_cvt_pk_{fp8,bf8}_f32", "bv1 rx1 rx1")
_valu("v_cvt_sr_{fp8,bf8}_f32", "bv1 rx1 rx1")
_valu("v_cvt_scalef32_pk_{fp8,bf8}_f32", "bv1 rx1 rx1 rx1")
_valu("v_cvt_scalef32_pk_{fp8,bf8}_{f16,bf16}", "bv1 rx1 rx1")
_valu("v_cvt_scalef32_pk_fp4_f32", "bv1 rx1 rx1 rx1")
_valu("v_cvt_scalef32_pk_fp4_{f16,bf16}", "bv1 rx1 rx1")
_valu("v_cvt_scalef32_f16_{fp8,bf8}", "bv1 rx1 rx1")
_valu("v_ashr_pk_{u8,i8}_i32", "bv1 rx1 rx1 rx1")
_valu("v_fma_mix{lo,hi}_f16", "bv1 rx1 rx1 rx1")
_valu("v_cvt_scalef32_pk_f32_{fp8,bf8,fp4}", "wv2 rx1 rx1")
_valu("v_cvt_scalef32_pk_{f16,bf16}_{fp8,bf8,fp4}", "wv1 rx1 rx1")
_valu("v_cvt_sr_{f16,bf16}_f32", "bv1 rx1 rx1")

# Three sources.
_valu(
    "v_fma_{f32,f16,legacy_f16} v_mad_{f16,legacy_f16} v_fma_mix_f32 "
    "v_mad_{i32_i24,u32_u24,u16,i16,u32_u16,i32_i16} v_bfe_{u32,i32} v_bfi_b32 v_lerp_u8 "
    "v_alignbit_b32 v_alignbyte_b32 v_{min3,max3,med3}_{f32,i32,u32,f16,i16,u16} "
    "v_{minimum3,maximum3}_f32 v_pk_{minimum3,maximum3}_f16 "
    "v_sad_{u8,hi_u8,u16,u32} v_msad_u8 v_cvt_pk_u8_f32 v_div_fixup_{f32,f16} v_perm_b32 "
    "v_lshl_add_u32 v_add_lshl_u32 v_add3_u32 v_lshl_or_b32 v_and_or_b32 v_or3_b32 v_xad_u32 "
    "v_bitop3_{b32,b16} v_dot2_f32_{f16,bf16} v_dot4_{i32_i8,u32_u8} v_dot8_{i32_i4,u32_u4} "
    "v_dot2_{i32_i16,u32_u16}",
    "wv1 rx1 rx1 rx1",
)
_valu("v_div_fmas_f32", "wv1 rx1 rx1 rx1", reads=VCC)
_valu("v_fma_f64 v_div_fixup_f64", "wv2 rx2 rx2 rx2", cycles=8)
_valu("v_div_fmas_f64", "wv2 rx2 rx2 rx2", reads=VCC, cycles=8)
_valu("v_lshl_add_u64", "wv2 rx2 rx1 rx2")
_valu("v_div_scale_f32", "wv1 wm2 rx1 rx1 rx1")
_valu("v_div_scale_f64", "wv2 wm2 rx2 rx2 rx2", cycles=8)
_valu("v_mad_{u64_u32,i64_i32}", "wv2 wm2 rx1 rx1 rx2", cycles=16)

# Packed.
_valu(
    "v_pk_{add,sub,min,max}_{i16,u16} v_pk_mul_lo_u16 v_pk_{add,mul,min,max}_f16 "
    "v_pk_{lshlrev,lshrrev}_b16 v_pk_ashrrev_i16",
    "wv1 rx1 rx1",
)
_valu("v_pk_mad_{i16,u16} v_pk_fma_f16", "wv1 rx1 rx1 rx1")
_valu("v_pk_{mul,add}_f32 v_pk_mov_b32", "wv2 rx2 rx2")
_valu("v_pk_fma_f32", "wv2 rx2 rx2 rx2")

# Carries, selections, comparisons.
_valu("v_{add,sub,subrev}_co_u32", "wv1 wm2 rx1 rx1")
_valu("v_{addc,subb,subbrev}_co_u32", "wv1 wm2 rx1 rx1 rm2")
_valu("v_cndmask_b32", "wv1 rx1 rx1 rm2")
_INTEGER = "f,lt,eq,le,gt,ne,ge,t"
_FLOAT = "f,lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt,tru"
for _x, _writes in (("", frozenset[int]()), ("x", EXEC)):
    for _types, _conditions in (("i32,u32,i16,u16", _INTEGER), ("f32,f16", _FLOAT)):
        _valu(
            f"v_cmp{_x}_{{{_conditions}}}_{{{_types}}}", "wm2 rx1 rx1", wait_class="cmp",
            writes=_writes,
        )  # fmt: skip
    for _types, _conditions in (("i64,u64", _INTEGER), ("f64", _FLOAT)):
        _valu(
            f"v_cmp{_x}_{{{_conditions}}}_{{{_types}}}", "wm2 rx2 rx2", wait_class="cmp",
            writes=_writes, cycles=8,
        )  # fmt: skip
    _valu(f"v_cmp{_x}_class_{{f32,f16}}", "wm2 rx1 rx1", wait_class="cmp", writes=_writes)
    _valu(f"v_cmp{_x}_class_f64", "wm2 rx2 rx1", wait_class="cmp", writes=_writes, cycles=8)

# Lanes and scalars; readlane and writelane ignore EXEC.
declare("v_readlane_b32", "ws1 rv1 rs1", "valu", wait_class="lane")
declare("v_writelane_b32", "bv1 rs1 rs1", "valu", wait_class="lane")
_valu("v_readfirstlane_b32", "ws1 rv1", wait_class="lane")
