"""Decides how K and V travel: global memory to an LDS ring to matrix operands, and Q to registers.

A tile of 64 keys is 64 rows of 128 bytes in LDS, filled by LDS-direct loads, 8 rows a wave. The
16-byte chunks of a row are swizzled, chunk c of row r standing at c ^ f(r), so that neither the
16-byte reads of K (16 rows, one chunk) nor the transposing reads of V (8 rows, two chunks) meet in
a bank. f takes x = (r >> 1) & 7 and swaps its two low bits: distinct for the 8 row pairs of K, and
distinct above its lowest bit for the rows {0..3, 8..11} of V.

K's rope part has rows of 64 bytes; a pair of tiles is 128 of them, filled by one load a wave, 16
rows each. Chunk c of row r stands at c ^ ((r >> 2) & 3): four rows share the 256 bytes of all
banks, so the 16-byte reads of 16 rows meet in no bank if the four groups of four rows differ, which
they do whether the machine takes lanes 0-15 together or {0-3, 12-15, 20-27} and {4-11, 16-19,
28-31} (as measured by others on CDNA3, where K's own rows differ too).
"""

from __future__ import annotations

from asm_overrides.program import M0, Builder, Part, Ring, Value
from asm_overrides.recipes.attention_fp8.parameters import (
    HEADDIM_FIRST,
    TILE_M_WAVE,
    TILE_N,
    WAVES,
    Parameters,
)
from asm_overrides.recipes.attention_fp8.values import D_TILES, KEY_TILES, Values

ROW_BYTES = 128
TILE_BYTES = TILE_N * ROW_BYTES
WAVE_BYTES = TILE_BYTES // WAVES  # that one load of a wave brings
ROPE_ROW_BYTES = 64
ROPE_TILE_BYTES = TILE_N * ROPE_ROW_BYTES
FIRST_SLICES = HEADDIM_FIRST // 64
BUFFER_FLAGS = 0x27000  # raw buffer, 32-bit data, bounds checked in bytes


class Tiles:
    """K, V and Q on their way; one method a step, each emits into the open stage."""

    def __init__(self, b: Builder, p: Parameters, v: Values) -> None:
        self.b, self.p, self.v = b, p, v
        self.k_ring = b.ring("k", p.slots, TILE_BYTES)
        self.v_ring = b.ring("v", p.slots, TILE_BYTES)
        if p.has_rope:
            self.k_rope_ring = b.ring("k_rope", p.slots // 2, 2 * ROPE_TILE_BYTES)

    def descriptors(self) -> None:
        """Buffer descriptors of K and V: rows past the end read as zero."""
        b, v = self.b, self.v
        self._descriptor(v.k_desc, v.k_ptr, v.seqlen_k[0], v.stride_k)
        self._descriptor(v.v_desc, v.v_ptr, v.seqlen_k[0], v.stride_v)
        if self.p.has_rope:
            stride = v.stride_k_rope
            self._descriptor(v.k_rope_desc, v.k_rope_ptr, v.seqlen_k[0], stride, ROPE_ROW_BYTES)
            b.op("s_lshl_b32", v.k_rope_step, v.stride_k_rope, 7, role="bytes between pairs")
        b.op("s_lshl_b32", v.k_step, v.stride_k, 6, role="bytes between K tiles")
        b.op("s_lshl_b32", v.v_step, v.stride_v, 6, role="bytes between V tiles")
        b.op("s_lshl_b32", v.fetch_base, v.wave, 10, role="this wave's part of a tile")

    def _descriptor(
        self, desc: Value, ptr: Value, rows: Part, stride: Value, row_bytes: int = ROW_BYTES
    ) -> None:
        b, size = self.b, self.v.s[1]
        b.op("s_mov_b32", desc[0], ptr[0], role=f"{desc.name}: base")
        b.op("s_and_b32", desc[1], ptr[1], 0xFFFF)
        b.op("s_sub_u32", size, rows, 1)
        b.op("s_mul_i32", size, size, stride)
        b.op("s_add_u32", desc[2], size, row_bytes, role=f"{desc.name}: bytes")
        b.op("s_mov_b32", desc[3], BUFFER_FLAGS)

    def lane_addresses(self) -> None:
        """Addresses that stay the same for the whole loop; leaves the lane in t0."""
        self.b.op("v_and_b32", self.v.t[0], 63, self.v.thread, role="lane")
        self._fetch_addresses()
        self._k_read_addresses()
        self._v_read_addresses()
        if self.p.has_rope:
            self._rope_addresses()

    def _fetch_addresses(self) -> None:
        """Lane i of wave w fetches row 8 w + i / 8; LDS position i % 8 holds a swizzled chunk."""
        b, v = self.b, self.v
        lane, swizzle, bit, row = (v.t[i] for i in range(4))
        b.op("v_bfe_u32", swizzle, lane, 5, 1, role="swizzle of the row: x1")
        b.op("v_bfe_u32", bit, lane, 4, 1)
        b.op("v_lshl_or_b32", swizzle, bit, 1, swizzle, role="x0")
        b.op("s_and_b32", v.s[0], v.wave, 1)
        b.op("s_lshl_b32", v.s[0], v.s[0], 2)
        b.op("v_or_b32", swizzle, v.s[0], swizzle, role="x2")
        b.op("v_and_b32", bit, 7, lane, role="position")
        b.op("v_xor_b32", bit, bit, swizzle, role="chunk")
        b.op("v_lshlrev_b32", bit, 4, bit)
        b.op("v_lshrrev_b32", row, 3, lane)
        b.op("s_lshl_b32", v.s[0], v.wave, 3)
        b.op("v_add_u32", row, v.s[0], row, role="row within the tile")
        b.op("v_mul_lo_u32", v.k_fetch, row, v.stride_k)
        b.op("v_add_u32", v.k_fetch, v.k_fetch, bit, role="K: this lane's 16 bytes of a tile")
        b.op("v_mul_lo_u32", v.v_fetch, row, v.stride_v)
        b.op("v_add_u32", v.v_fetch, v.v_fetch, bit, role="V: this lane's 16 bytes of a tile")

    def _k_read_addresses(self) -> None:
        """Lane l reads row l % 32; chunk 4 s + 2 q + l / 32 of slice s, quarter q."""
        b, v = self.b, self.v
        lane, swizzle, bit = (v.t[i] for i in range(3))
        b.op("v_bfe_u32", swizzle, lane, 2, 1, role="x1")
        b.op("v_bfe_u32", bit, lane, 1, 1)
        b.op("v_lshl_or_b32", swizzle, bit, 1, swizzle, role="x0")
        b.op("v_bfe_u32", bit, lane, 3, 1)
        b.op("v_lshl_or_b32", swizzle, bit, 2, swizzle, role="x2")
        b.op("v_lshrrev_b32", bit, 5, lane, role="lane half")
        b.op("v_xor_b32", swizzle, swizzle, bit)
        b.op("v_lshlrev_b32", swizzle, 4, swizzle)
        b.op("v_and_b32", bit, 31, lane)
        b.op("v_lshl_or_b32", v.k_lane[0], bit, 7, swizzle, role="K operand, chunk 0")
        for chunk, address in enumerate(v.k_lane[1 : 2 * FIRST_SLICES], 1):
            b.op("v_xor_b32", address, 32 * chunk, v.k_lane[0], role=f"chunk {2 * chunk}")
        if self.k_ring.base:
            raise ValueError("the K ring must start at LDS byte 0")

    def _v_read_addresses(self) -> None:
        """Lane l reads 8 bytes of row 4 h + j % 4 + 8 (j / 4), j = l % 16 / 2, h = l / 32."""
        b, v = self.b, self.v
        lane, half, swizzle, row, bit = (v.t[i] for i in range(5))
        b.op("v_lshrrev_b32", half, 5, lane, role="lane half")
        b.op("v_bfe_u32", bit, lane, 2, 1, role="bit 1 of j")
        b.op("v_lshl_or_b32", swizzle, bit, 1, half, role="x0, x1")
        b.op("v_bfe_u32", bit, lane, 3, 1, role="bit 2 of j")
        b.op("v_lshl_or_b32", swizzle, bit, 2, swizzle, role="x2")
        b.op("v_lshlrev_b32", row, 3, bit)
        b.op("v_lshl_or_b32", row, half, 2, row)
        b.op("v_bfe_u32", bit, lane, 1, 2, role="j % 4")
        b.op("v_or_b32", row, row, bit)
        b.op("v_bfe_u32", bit, lane, 4, 1, role="which 16 of the 32 columns")
        b.op("v_xor_b32", swizzle, swizzle, bit)
        b.op("v_lshlrev_b32", swizzle, 4, swizzle)
        b.op("v_lshl_or_b32", row, row, 7, swizzle)
        b.op("v_and_b32", bit, 1, lane)
        b.op("v_lshl_or_b32", v.v_lane[0], bit, 3, row, role="V operand, columns 0-31")
        for tile, address in enumerate(v.v_lane[1:], 1):
            b.op("v_xor_b32", address, 32 * tile, v.v_lane[0], role=f"columns {32 * tile}..")
        for address in v.v_lane:
            b.op("v_add_u32", address, self.v_ring.base, address)

    def _rope_addresses(self) -> None:
        """Fetch: lane i of wave w brings chunk (i % 4) ^ (i / 16) of row 16 w + i / 4 of a pair.

        Read: lane l takes chunk 2 q + l / 32 of row l % 32 for quarter q.
        """
        b, v = self.b, self.v
        lane, chunk, row = (v.t[i] for i in range(3))
        b.op("v_and_b32", chunk, 3, lane, role="position")
        b.op("v_lshrrev_b32", row, 4, lane)
        b.op("v_xor_b32", chunk, chunk, row, role="chunk")
        b.op("v_lshlrev_b32", chunk, 4, chunk)
        b.op("v_lshrrev_b32", row, 2, lane)
        b.op("s_lshl_b32", v.s[0], v.wave, 4)
        b.op("v_add_u32", row, v.s[0], row, role="row within the pair")
        b.op("v_mul_lo_u32", v.k_rope_fetch, row, v.stride_k_rope)
        b.op("v_add_u32", v.k_rope_fetch, v.k_rope_fetch, chunk, role="rope: this lane's 16 bytes")
        first, second = v.k_lane[2 * FIRST_SLICES :]
        b.op("v_bfe_u32", chunk, lane, 2, 2, role="swizzle of the row")
        b.op("v_lshrrev_b32", row, 5, lane, role="lane half")
        b.op("v_xor_b32", chunk, chunk, row)
        b.op("v_lshlrev_b32", chunk, 4, chunk)
        b.op("v_and_b32", row, 31, lane)
        b.op("v_lshl_or_b32", first, row, 6, chunk, role="rope operand, chunk 0")
        b.op("v_xor_b32", second, 32, first, role="rope operand, chunk 2")
        for address in (first, second):
            b.op("v_add_u32", address, self.k_rope_ring.base, address)

    def load_queries(self) -> None:
        """Q^T operands: lane l holds query l % 32 of the wave. Behind lane_addresses."""
        b, v = self.b, self.v
        rows_left = v.s[2]
        b.op("s_sub_i32", rows_left, v.seqlen_q, v.row_first, role="rows of Q from here on")
        b.op("s_min_i32", rows_left, rows_left, TILE_M_WAVE * WAVES)
        lane, row, address, half = (v.t[i] for i in range(4))
        b.op("v_and_b32", row, 31, lane)
        b.op("s_lshl_b32", v.s[0], v.wave, 5)
        b.op("v_add_u32", row, v.s[0], row, role="row within the workgroup's tile")
        b.op("v_lshrrev_b32", half, 5, lane)
        parts = [(v.q_ptr, v.stride_q, ROW_BYTES, range(FIRST_SLICES))]
        if self.p.has_rope:
            rest = range(FIRST_SLICES, self.p.slices)
            parts.append((v.q_rope_ptr, v.stride_q_rope, ROPE_ROW_BYTES, rest))
        for ptr, stride, row_bytes, slices in parts:
            self._descriptor(v.q_desc, ptr, rows_left[0], stride, row_bytes)
            b.op("v_mul_lo_u32", address, row, stride)
            b.op("v_lshl_add_u32", address, half, 4, address)
            for s in slices:
                for quarter in range(2):
                    b.op(
                        "buffer_load_dwordx4",
                        v.frag_q[s][4 * quarter : 4 * quarter + 4],
                        address,
                        v.q_desc,
                        0,
                        modifiers=f"offen offset:{64 * (s - slices[0]) + 32 * quarter}",
                        role=f"Q, slice {s}",
                    )

    def fetch_k(self, slot: int) -> None:
        """Start this wave's part of the next K tile on its way into a slot."""
        v = self.v
        self._fetch(self.k_ring, slot, v.k_fetch, v.k_desc, v.k_step)

    def fetch_v(self, slot: int) -> None:
        """Start this wave's part of the next V tile on its way into a slot."""
        v = self.v
        self._fetch(self.v_ring, slot, v.v_fetch, v.v_desc, v.v_step)

    def fetch_k_rope(self, pair: int) -> None:
        """Start this wave's part of the next two tiles of K's rope part on its way."""
        v = self.v
        self._fetch(self.k_rope_ring, pair, v.k_rope_fetch, v.k_rope_desc, v.k_rope_step)

    def _fetch(self, into: Ring, slot: int, address: Value, desc: Value, step: Value) -> None:
        b, v, ring = self.b, self.v, into.name
        lds_byte = into.base + slot * into.tile_bytes
        b.op("s_add_u32", M0, v.fetch_base, lds_byte, role=f"{ring} tile: LDS byte")
        b.op(
            "buffer_load_dwordx4",
            address,
            desc,
            0,
            modifiers="offen lds",
            lds_writes=(ring,),
            role=f"{ring} tile",
        )
        b.op("s_add_u32", desc[0], desc[0], step, role=f"{ring}: next tile")
        b.op("s_addc_u32", desc[1], desc[1], 0)
        b.op("s_sub_u32", desc[2], desc[2], step)
        b.op("s_cselect_b32", desc[2], 0, desc[2], role="past the end: nothing is in range")

    def read_k(self, slot: int) -> None:
        """K operands of a tile."""
        b, v = self.b, self.v
        for s in range(self.p.slices):
            is_rope = s >= FIRST_SLICES
            row_bytes = ROPE_ROW_BYTES if is_rope else ROW_BYTES
            for t in range(KEY_TILES):
                for quarter in range(2):
                    offset = (slot * TILE_N + t * 32) * row_bytes
                    b.op(
                        "ds_read_b128",
                        v.frag_k[t][s][4 * quarter : 4 * quarter + 4],
                        v.k_lane[2 * s + quarter],
                        modifiers=f"offset:{offset}" if offset else "",
                        lds_reads=("k_rope" if is_rope else "k",),
                        role=f"K, keys {32 * t}.., slice {s}",
                    )

    def read_v(self, slot: int) -> None:
        """V^T operands: dword 4 t + j of lane half h holds keys 32 t + 8 j + 4 h + 0..3."""
        b, v = self.b, self.v
        for d in range(D_TILES):
            for part in range(4):
                offset = slot * TILE_BYTES + part * 16 * ROW_BYTES
                b.op(
                    "ds_read_b64_tr_b8",
                    v.frag_v[d][2 * part : 2 * part + 2],
                    v.v_lane[d],
                    modifiers=f"offset:{offset}" if offset else "",
                    lds_reads=("v",),
                    role=f"V, columns {32 * d}.., keys {16 * part}..",
                )
