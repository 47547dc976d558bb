"""Decides the table entries of LDS and vector memory opcodes; see table.py for the notation."""

from __future__ import annotations

from asm_overrides.isa.registers import EXEC, M0
from asm_overrides.isa.table import declare

_LGKM = ("lgkmcnt",)
_VM = ("vmcnt",)
_FLAT = ("vmcnt", "lgkmcnt")


def _lds(opcodes: str, notation: str, access: str, size: int, cycles: int = 8) -> None:
    declare(
        opcodes, notation, "lds", cycles=cycles, reads=EXEC, counters=_LGKM, access=access,
        bytes_per_lane=size,
    )  # fmt: skip


_WIDTHS = {"b32": (1, 4), "b64": (2, 8), "b96": (3, 12), "b128": (4, 16)}
for _type, (_dwords, _size) in _WIDTHS.items():
    _lds(f"ds_read_{_type}", f"wv{_dwords} rv1", "load", _size, 4 * max(2, _dwords))
    _lds(f"ds_write_{_type}", f"rv1 rv{_dwords}", "store", _size, 4 * max(2, _dwords))
_lds("ds_read_{u8,i8}", "wv1 rv1", "load", 1)
_lds("ds_read_{u16,i16}", "wv1 rv1", "load", 2)
_lds("ds_read_{u8,i8}_d16 ds_read_{u8,i8}_d16_hi", "bv1 rv1", "load", 1)
_lds("ds_read_u16_d16 ds_read_u16_d16_hi", "bv1 rv1", "load", 2)
_lds("ds_write_b8 ds_write_b8_d16_hi", "rv1 rv1", "store", 1)
_lds("ds_write_b16 ds_write_b16_d16_hi", "rv1 rv1", "store", 2)
_lds("ds_read2_b32 ds_read2st64_b32", "wv2 rv1", "load", 4)
_lds("ds_read2_b64 ds_read2st64_b64", "wv4 rv1", "load", 8, 16)
_lds("ds_write2_b32 ds_write2st64_b32", "rv1 rv1 rv1", "store", 4)
_lds("ds_write2_b64 ds_write2st64_b64", "rv1 rv2 rv2", "store", 8, 16)
_lds("ds_read_b64_tr_b{4,8,16}", "wv2 rv1", "load", 8)
_lds("ds_read_b96_tr_b6", "wv3 rv1", "load", 12)
# Moves between lanes that never touch LDS storage.
_lds("ds_bpermute_b32 ds_permute_b32", "wv1 rv1 rv1", "", 0)
_lds("ds_swizzle_b32", "wv1 rv1", "", 0)
_lds("ds_nop", "", "", 0)
_LDS_OPS = "add,sub,min,max"
_lds(f"ds_{{{_LDS_OPS}}}_u32", "rv1 rv1", "atomic", 4)
_lds("ds_{min,max}_i32 ds_{and,or,xor}_b32 ds_{add,min,max}_f32", "rv1 rv1", "atomic", 4)
_lds(f"ds_{{{_LDS_OPS}}}_rtn_u32", "wv1 rv1 rv1", "atomic", 4)
_lds(
    "ds_{min,max}_rtn_i32 ds_{and,or,xor}_rtn_b32 ds_{add,min,max}_rtn_f32 ds_wrxchg_rtn_b32",
    "wv1 rv1 rv1",
    "atomic",
    4,
)

_LOADS = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2}
_D16_LOADS = {"ubyte_d16": 1, "sbyte_d16": 1, "short_d16": 2}
_STORES = {"byte": 1, "byte_d16_hi": 1, "short": 2, "short_d16_hi": 2}
_DWORDS = {"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4}
_ATOMICS = "add,sub,smin,umin,smax,umax,and,or,xor,swap"

# Address operands after the data: buffer has vaddr, srsrc, soffset; the others vaddr, saddr.
_SPACES = {
    "buffer": ("rv1/2 rs4 rs1", _VM),
    "global": ("rv1/2 rs2", _VM),
    "flat": ("rv2", _FLAT),
    "scratch": ("rv1 rs1", _VM),
}


def _vmem(
    opcodes: str, notation: str, access: str, size: int, counters: tuple[str, ...], m0: bool = False
) -> None:
    reads = EXEC | {M0} if m0 else EXEC
    declare(
        opcodes, notation, "vmem", cycles=4, reads=reads, counters=counters, access=access,
        bytes_per_lane=size,
    )  # fmt: skip


for _space, (_address, _counters) in _SPACES.items():
    # Buffer operands: data, vaddr, srsrc, soffset. Others: loads data first, stores address first.
    _buffer = _space == "buffer"
    for _suffix, _size in _LOADS.items():
        _vmem(f"{_space}_load_{_suffix}", f"wv1 {_address}", "load", _size, _counters)
    for _suffix, _size in _D16_LOADS.items():
        _vmem(
            f"{_space}_load_{_suffix} {_space}_load_{_suffix}_hi", f"bv1 {_address}", "load", _size,
            _counters,
        )  # fmt: skip
    for _suffix, _dwords in _DWORDS.items():
        _vmem(f"{_space}_load_{_suffix}", f"wv{_dwords} {_address}", "load", 4 * _dwords, _counters)
    for _suffix, _size in _STORES.items():
        _data = f"rv1 {_address}"
        if not _buffer:
            _vaddr, *_rest = _address.split()
            _data = " ".join([_vaddr, "rv1", *_rest])
        _vmem(f"{_space}_store_{_suffix}", _data, "store", _size, _counters)
    for _suffix, _dwords in _DWORDS.items():
        _data = f"rv{_dwords} {_address}"
        if not _buffer:
            _vaddr, *_rest = _address.split()
            _data = " ".join([_vaddr, f"rv{_dwords}", *_rest])
        _vmem(f"{_space}_store_{_suffix}", _data, "store", 4 * _dwords, _counters)

# Atomics; with sc0 the old value is returned in a destination that the parser puts in front.
for _space in ("buffer", "global", "flat"):
    _address, _counters = _SPACES[_space]
    for _names, _width in (
        (f"{{{_ATOMICS}}}", 1),
        ("{add_f32,pk_add_f16,pk_add_bf16}", 1),
        (f"{{{_ATOMICS}}}_x2", 2),
        ("{add_f64,min_f64,max_f64}", 2),
        ("cmpswap", 2),
        ("cmpswap_x2", 4),
    ):
        if _space == "buffer":
            _notation = f"rv{_width} {_address}"
        else:
            _vaddr, *_rest = _address.split()
            _notation = " ".join([_vaddr, f"rv{_width}", *_rest])
        _bytes = 4 * (_width // 2 if "cmpswap" in _names else _width)
        _vmem(f"{_space}_atomic_{_names}", _notation, "atomic", _bytes, _counters)

# Loads that write LDS instead of registers.
for _suffix, _size in (
    ("ubyte", 1), ("sbyte", 1), ("ushort", 2), ("sshort", 2),
    ("dword", 4), ("dwordx3", 12), ("dwordx4", 16),
):  # fmt: skip
    _vmem(f"global_load_lds_{_suffix}", "rv1/2 rs2", "load", _size, _VM, m0=True)
    if _size <= 4:
        _vmem(f"scratch_load_lds_{_suffix}", "rv1 rs1", "load", _size, _VM, m0=True)

# Cache control.
declare("buffer_wbl2 buffer_inv", "", "vmem", counters=_VM)
