"""Decides which pairs of instructions the wait-state table is compared with llc on.

Each entry is one line of LLVM's machine IR. Producers make v0.., s[0:1], VCC, EXEC or M0; consumers
use them as sources, factors, addends, addresses, data or overwrite them.
"""

from __future__ import annotations

import subprocess


def v(first: int, count: int = 1) -> str:
    return "$" + "_".join(f"vgpr{first + i}" for i in range(count))


def a(first: int, count: int = 1) -> str:
    return "$" + "_".join(f"agpr{first + i}" for i in range(count))


def s(first: int, count: int = 1) -> str:
    return "$" + "_".join(f"sgpr{first + i}" for i in range(count))


EXEC = ", implicit $exec"
MODE = ", implicit $mode" + EXEC

# name of the machine opcode -> (dwords of A, of B, of D)
MATRIX = {
    "V_MFMA_F32_32X32X16_BF16_vgprcd_e64": (4, 4, 16),
    "V_MFMA_F32_32X32X16_F16_vgprcd_e64": (4, 4, 16),
    "V_MFMA_F32_16X16X32_BF16_vgprcd_e64": (4, 4, 4),
    "V_MFMA_F32_32X32X16_FP8_FP8_vgprcd_e64": (2, 2, 16),
    "V_MFMA_F32_16X16X32_FP8_FP8_vgprcd_e64": (2, 2, 4),
    "V_MFMA_F32_32X32X8F16_vgprcd_e64": (2, 2, 16),
    "V_MFMA_F32_16X16X16F16_vgprcd_e64": (2, 2, 4),
    "V_MFMA_F32_4X4X4F16_vgprcd_e64": (2, 2, 4),
    "V_MFMA_F32_32X32X4F16_vgprcd_e64": (2, 2, 32),
    "V_MFMA_F32_16X16X4F16_vgprcd_e64": (2, 2, 16),
    "V_MFMA_F32_32X32X2F32_vgprcd_e64": (1, 1, 16),
    "V_MFMA_F32_16X16X4F32_vgprcd_e64": (1, 1, 4),
    "V_MFMA_F32_4X4X1F32_vgprcd_e64": (1, 1, 4),
    "V_MFMA_I32_32X32X32_I8_vgprcd_e64": (4, 4, 16),
    "V_MFMA_I32_16X16X64_I8_vgprcd_e64": (4, 4, 4),
}


def matrix(opcode: str, d: str, a_: str, b: str, c: str) -> str:
    return f"{d} = {opcode} {a_}, {b}, {c}, 0, 0, 0{MODE}"


def f8f6f4(
    shape: str, kinds: str, formats: tuple[int, int], d: str, a_: str, b: str, c: str
) -> str:
    name = f"V_MFMA_F32_{shape}_F8F6F4_{kinds}_vgprcd_e64"
    return f"{d} = {name} {a_}, {b}, {c}, {formats[0]}, {formats[1]}{MODE}"


def scaled(d: str, a_: str, b: str, c: str, scale_a: str, scale_b: str) -> str:
    name = "V_MFMA_SCALE_F32_32X32X64_F8F6F4_f8_f8_vgprcd_e64"
    return f"{d} = {name} {a_}, {b}, {c}, 0, 0, {scale_a}, {scale_b}, 0, 0{MODE}"


def double(shape: str, dwords: int) -> str:
    d = v(0, dwords)
    return f"{d} = V_MFMA_F64_{shape}_vgprcd_e64 {v(40, 2)}, {v(48, 2)}, {d}, 0, 0, 0{MODE}"


def packed(opcode: str, d: str, *sources: str, high: bool = True) -> str:
    """A packed instruction; `high`: the high results take the high halves of the sources."""
    words = ", ".join(f"{8 if high else 0}, {source}" for source in sources)
    return f"{d} = {opcode} {words}, 0, 0, 0, 0, 0{MODE}"


def buffer_load(d: str, address: str, descriptor: str, offset: str = "0") -> str:
    return f"{d} = BUFFER_LOAD_DWORD_OFFEN {address}, {descriptor}, {offset}, 0, 0, 0{EXEC}"


def sparse(d: str, a_: str, b: str, index: str, shape: str = "16X16X128") -> str:
    name = f"V_SMFMAC_F32_{shape}_FP8_FP8_e64"
    return f"{d} = {name} {a_}, {b}, {index}, 0, 0, {d}{MODE}"


def _matrix_producers() -> dict[str, str]:
    made = {}
    for opcode, (width_a, width_b, width_d) in MATRIX.items():
        d = v(0, width_d)
        made[opcode] = matrix(opcode, d, v(40, width_a), v(48, width_b), d)
    for opcode in ("V_MFMA_F32_32X32X16_BF16_vgprcd_e64", "V_MFMA_F32_16X16X32_BF16_vgprcd_e64"):
        width_a, width_b, width_d = MATRIX[opcode]
        made[f"{opcode} addend only"] = matrix(
            opcode, v(64, width_d), v(40, width_a), v(48, width_b), v(0, width_d)
        )
        made[f"{opcode} factors only"] = matrix(
            opcode, v(64, width_d), v(0, width_a), v(4, width_b), v(64, width_d)
        )
    d16 = v(0, 16)
    made["fp8 32x32x64"] = f8f6f4("32X32X64", "f8_f8", (0, 0), d16, v(40, 8), v(48, 8), d16)
    made["fp8 x fp4"] = f8f6f4("32X32X64", "f8_f4", (0, 4), d16, v(40, 8), v(48, 4), d16)
    made["fp4 32x32x64"] = f8f6f4("32X32X64", "f4_f4", (4, 4), d16, v(40, 4), v(48, 4), d16)
    made["fp6 32x32x64"] = f8f6f4("32X32X64", "f6_f6", (2, 2), d16, v(40, 6), v(48, 6), d16)
    made["fp8 16x16x128"] = f8f6f4(
        "16X16X128", "f8_f8", (0, 0), v(0, 4), v(40, 8), v(48, 8), v(0, 4)
    )
    made["fp4 16x16x128"] = f8f6f4(
        "16X16X128", "f4_f4", (4, 4), v(0, 4), v(40, 4), v(48, 4), v(0, 4)
    )
    made["fp8 addend only"] = f8f6f4(
        "32X32X64", "f8_f8", (0, 0), v(64, 16), v(40, 8), v(48, 8), d16
    )
    made["fp8 factors only"] = f8f6f4(
        "32X32X64", "f8_f8", (0, 0), v(64, 16), v(0, 8), v(8, 8), v(64, 16)
    )
    made["scaled"] = scaled(d16, v(40, 8), v(48, 8), d16, v(60), v(61))
    made["sparse"] = sparse(v(0, 4), v(40, 4), v(48, 8), v(60))
    made["sparse 32x32"] = sparse(d16, v(40, 4), v(48, 8), v(60), "32X32X64")
    made["double 16x16"] = double("16X16X4F64", 8)
    made["double 4x4"] = double("4X4X4F64", 2)
    return made


def _vector_producers() -> dict[str, str]:
    return {
        "mov": f"{v(0)} = V_MOV_B32_e32 {v(40)}{EXEC}",
        "add": f"{v(0)} = V_ADD_F32_e32 {v(40)}, {v(41)}{MODE}",
        "fma": f"{v(4)} = V_FMA_F32_e64 0, {v(40)}, 0, {v(41)}, 0, {v(42)}, 0, 0{MODE}",
        "exp": f"{v(0)} = V_EXP_F32_e32 {v(40)}{MODE}",
        "log": f"{v(0)} = V_LOG_F32_e32 {v(40)}{MODE}",
        "rcp": f"{v(0)} = V_RCP_F32_e32 {v(40)}{MODE}",
        "rsq": f"{v(0)} = V_RSQ_F32_e32 {v(40)}{MODE}",
        "sqrt": f"{v(0)} = V_SQRT_F32_e32 {v(40)}{MODE}",
        "rcp f16": f"{v(0)} = V_RCP_F16_e32 {v(40)}{MODE}",
        "rcp f64": f"{v(0, 2)} = V_RCP_F64_e32 {v(40, 2)}{MODE}",
        "packed": packed("V_PK_MUL_F32", v(0, 2), v(40, 2), v(42, 2)),
        "packed low": packed("V_PK_MUL_F32", v(0, 2), v(40, 2), v(42, 2), high=False),
        "packed fma": packed("V_PK_FMA_F32", v(0, 2), v(40, 2), v(42, 2), v(44, 2)),
        "packed f16": packed("V_PK_MUL_F16", v(0), v(40), v(42)),
        "fp8 low": f"{v(0)} = V_CVT_PK_FP8_F32_e64 0, {v(40)}, 0, {v(41)}, {v(0)}, 0{MODE}",
        "fp8 high": f"{v(0)} = V_CVT_PK_FP8_F32_e64 8, {v(40)}, 0, {v(41)}, {v(0)}, 0{MODE}",
        "dot": packed("V_DOT2_F32_F16", v(0), v(40), v(41), v(0)),
        "short dot": f"{v(0)} = V_DOT2C_F32_BF16_e32 {v(40)}, {v(41)}, {v(0)}{MODE}",
        "dot i8": f"{v(0)} = V_DOT4_I32_I8 8, {v(40)}, 8, {v(41)}, 8, {v(0)}, 0, 0, 0{EXEC}",
        "lds load": f"{v(0)} = DS_READ_B32_gfx9 {v(40)}, 0, 0{EXEC}",
        "to accumulator": f"{a(0)} = V_ACCVGPR_WRITE_B32_e64 {v(40)}{EXEC}",
        "from accumulator": f"{v(0)} = V_ACCVGPR_READ_B32_e64 {a(40)}{EXEC}",
        "permlane": f"{v(0)}, {v(1)} = V_PERMLANE32_SWAP_B32_e32 {v(0)}, {v(1)}{EXEC}",
        "writelane": f"{v(0)} = V_WRITELANE_B32 {s(40)}, 5, {v(0)}",
        "dpp": f"{v(0)} = V_MOV_B32_dpp {v(0)}, {v(40)}, 273, 15, 15, 0{EXEC}",
        "mad u64": (
            f"{v(0, 2)}, {s(0, 2)} = V_MAD_U64_U32_e64 {v(40)}, {v(41)}, {v(42, 2)}, 0{EXEC}"
        ),
    }


def _scalar_producers() -> dict[str, str]:
    compare = f"{v(40)}, {v(41)}, implicit-def $vcc"
    return {
        "cmp vcc": f"V_CMP_LT_F32_e32 {compare}{MODE}",
        "cmp pair": f"{s(0, 2)} = V_CMP_LT_F32_e64 0, {v(40)}, 0, {v(41)}, 0{MODE}",
        "cmpx": f"V_CMPX_LT_F32_e32 {compare}, implicit-def $exec{MODE}",
        "readlane": f"{s(0)} = V_READLANE_B32 {v(40)}, 3",
        "readfirstlane": f"{s(0)} = V_READFIRSTLANE_B32 {v(40)}{EXEC}",
        "div scale": (
            f"{v(0)}, $vcc = V_DIV_SCALE_F32_e64 0, {v(40)}, 0, {v(40)}, 0, {v(42)}, 0, 0{MODE}"
        ),
        "scalar mov": f"{s(0)} = S_MOV_B32 1",
        "scalar vcc": "$vcc = S_MOV_B64 1",
        "scalar m0": "$m0 = S_MOV_B32 1",
        "scalar exec": "$exec = S_MOV_B64 -1",
        "setreg mode": "S_SETREG_IMM32_B32 1, 129, implicit-def $mode, implicit $mode",
        "setreg trapsts": "S_SETREG_IMM32_B32 1, 131, implicit-def $mode, implicit $mode",
    }


def _memory_producers() -> dict[str, str]:
    buffer = f"{v(40)}, {s(40, 4)}"
    return {
        "wide buffer store": f"BUFFER_STORE_DWORDX4_OFFEN {v(0, 4)}, {buffer}, 0, 0, 0, 0{EXEC}",
        "wide buffer store, register offset": (
            f"BUFFER_STORE_DWORDX4_OFFEN {v(0, 4)}, {buffer}, {s(44)}, 0, 0, 0{EXEC}"
        ),
        "buffer store": f"BUFFER_STORE_DWORDX2_OFFEN {v(0, 2)}, {buffer}, 0, 0, 0, 0{EXEC}",
        "wide global store": f"GLOBAL_STORE_DWORDX4 {v(40, 2)}, {v(0, 4)}, 0, 0{EXEC}",
        "global store": f"GLOBAL_STORE_DWORDX2 {v(40, 2)}, {v(0, 2)}, 0, 0{EXEC}",
        "buffer load": buffer_load(v(0), v(40), s(40, 4)),
        "global load": f"{v(0, 2)} = GLOBAL_LOAD_DWORDX2 {v(40, 2)}, 0, 0{EXEC}",
        "load over its address": (buffer_load(v(40), v(40), s(40, 4))),
        "scalar load": f"{s(0, 2)} = S_LOAD_DWORDX2_IMM {s(40, 2)}, 0, 0",
        "wide lds store": f"DS_WRITE_B128_gfx9 {v(40)}, {v(0, 4)}, 0, 0{EXEC}",
    }


def producers() -> dict[str, str]:
    return _matrix_producers() | _vector_producers() | _scalar_producers() | _memory_producers()


def _matrix_consumers() -> dict[str, str]:
    bf16 = "V_MFMA_F32_32X32X16_BF16_vgprcd_e64"
    small = "V_MFMA_F32_16X16X32_BF16_vgprcd_e64"
    tiny = "V_MFMA_F32_4X4X4F16_vgprcd_e64"
    single = "V_MFMA_F32_32X32X2F32_vgprcd_e64"
    far = v(64, 16)
    return {
        "bf16 factor a": matrix(bf16, far, v(0, 4), v(48, 4), far),
        "bf16 factor b": matrix(bf16, far, v(48, 4), v(2, 4), far),
        "bf16 chain": matrix(bf16, v(0, 16), v(40, 4), v(48, 4), v(0, 16)),
        "bf16 shifted addend": matrix(bf16, v(2, 16), v(40, 4), v(48, 4), v(2, 16)),
        "bf16 overwrite": matrix(bf16, v(0, 16), v(40, 4), v(48, 4), far),
        "small chain": matrix(small, v(0, 4), v(40, 4), v(48, 4), v(0, 4)),
        "small shifted addend": matrix(small, v(2, 4), v(40, 4), v(48, 4), v(2, 4)),
        "tiny chain": matrix(tiny, v(0, 4), v(40, 2), v(48, 2), v(0, 4)),
        "single factor": matrix(single, far, v(0), v(48), far),
        "single addend": matrix(single, v(0, 16), v(40), v(48), v(0, 16)),
        "single shifted addend": matrix(single, v(2, 16), v(40), v(48), v(2, 16)),
        "fp8 factor": f8f6f4("32X32X64", "f8_f8", (0, 0), far, v(0, 8), v(48, 8), far),
        "fp8 chain": f8f6f4("32X32X64", "f8_f8", (0, 0), v(0, 16), v(40, 8), v(48, 8), v(0, 16)),
        "fp8 shifted addend": f8f6f4(
            "32X32X64", "f8_f8", (0, 0), v(4, 16), v(40, 8), v(48, 8), v(4, 16)
        ),
        "scaled chain": scaled(v(0, 16), v(40, 8), v(48, 8), v(0, 16), v(60), v(61)),
        "scaled by result": scaled(far, v(40, 8), v(48, 8), far, v(0), v(61)),
        "sparse index": sparse(v(64, 4), v(40, 4), v(48, 8), v(0)),
        "sparse chain": sparse(v(0, 4), v(40, 4), v(48, 8), v(60)),
        "accumulator factor": matrix(bf16, far, a(0, 4), v(48, 4), far),
        "double addend": double("16X16X4F64", 8),
        "double chain": double("4X4X4F64", 2),
    }


def _vector_consumers() -> dict[str, str]:
    return {
        "read": f"{v(90)} = V_MOV_B32_e32 {v(0)}{EXEC}",
        "overwrite": f"{v(0)} = V_MOV_B32_e32 {v(90)}{EXEC}",
        "overwrite third": f"{v(2)} = V_ADD_F32_e32 {v(90)}, {v(91)}{MODE}",
        "fma": f"{v(90)} = V_FMA_F32_e64 0, {v(0)}, 0, {v(4)}, 0, {v(92)}, 0, 0{MODE}",
        "max3": f"{v(90)} = V_MAX3_F32_e64 0, {v(3)}, 0, {v(4)}, 0, {v(5)}, 0, 0{MODE}",
        "exp": f"{v(90)} = V_EXP_F32_e32 {v(0)}{MODE}",
        "packed": packed("V_PK_MUL_F32", v(90, 2), v(0, 2), v(92, 2)),
        "fp8 keeps rest": f"{v(0)} = V_CVT_PK_FP8_F32_e64 8, {v(90)}, 0, {v(91)}, {v(0)}, 0{MODE}",
        "fmac": f"{v(0)} = V_FMAC_F32_e32 {v(90)}, {v(91)}, {v(0)}{MODE}",
        "dot addend": packed("V_DOT2_F32_F16", v(0), v(90), v(91), v(0)),
        "short dot addend": f"{v(0)} = V_DOT2C_F32_BF16_e32 {v(90)}, {v(91)}, {v(0)}{MODE}",
        "short dot factor": f"{v(90)} = V_DOT2C_F32_BF16_e32 {v(0)}, {v(91)}, {v(90)}{MODE}",
        "dot factor": packed("V_DOT2_F32_F16", v(90), v(0), v(91), v(92)),
        "dpp": f"{v(90)} = V_MOV_B32_dpp {v(90)}, {v(0)}, 273, 15, 15, 0{EXEC}",
        "dpp overwrite": f"{v(0)} = V_MOV_B32_dpp {v(0)}, {v(90)}, 273, 15, 15, 0{EXEC}",
        "permlane": f"{v(0)}, {v(90)} = V_PERMLANE32_SWAP_B32_e32 {v(0)}, {v(90)}{EXEC}",
        "permlane16": f"{v(90)}, {v(0)} = V_PERMLANE16_SWAP_B32_e32 {v(90)}, {v(0)}{EXEC}",
        "from accumulator": f"{v(90)} = V_ACCVGPR_READ_B32_e64 {a(0)}{EXEC}",
        "to accumulator": f"{a(90)} = V_ACCVGPR_WRITE_B32_e64 {v(0)}{EXEC}",
        "fma f64": (
            f"{v(90, 2)} = V_FMA_F64_e64 0, {v(92, 2)}, 0, {v(94, 2)}, 0, {v(96, 2)}, 0, 0{MODE}"
        ),
    }


def _scalar_consumers() -> dict[str, str]:
    return {
        "readlane": f"{s(90)} = V_READLANE_B32 {v(0)}, 3",
        "readlane select": f"{s(90)} = V_READLANE_B32 {v(90)}, {s(0)}",
        "readlane vcc select": f"{s(90)} = V_READLANE_B32 {v(90)}, $vcc_lo",
        "writelane": f"{v(90)} = V_WRITELANE_B32 7, {s(0)}, {v(90)}",
        "writelane value": f"{v(90)} = V_WRITELANE_B32 {s(0)}, 3, {v(90)}",
        "readfirstlane": f"{s(90)} = V_READFIRSTLANE_B32 {v(0)}{EXEC}",
        "sgpr read": f"{v(90)} = V_ADD_F32_e32 {s(0)}, {v(91)}{MODE}",
        "cndmask vcc": f"{v(90)} = V_CNDMASK_B32_e32 {v(91)}, {v(92)}, implicit $vcc{EXEC}",
        "cndmask pair": f"{v(90)} = V_CNDMASK_B32_e64 0, {v(91)}, 0, {v(92)}, {s(0, 2)}{EXEC}",
        "div fmas": (
            f"{v(90)} = V_DIV_FMAS_F32_e64 0, {v(91)}, 0, {v(92)}, 0, {v(93)}, 0, 0, "
            f"implicit $mode, implicit $vcc{EXEC}"
        ),
        "scalar read": f"{s(90)} = S_MOV_B32 {s(0)}",
        "getreg mode": f"{s(90)} = S_GETREG_B32 129, implicit $mode",
        "getreg trapsts": f"{s(90)} = S_GETREG_B32 131, implicit $mode",
        "setreg mode": "S_SETREG_IMM32_B32 2, 129, implicit-def $mode, implicit $mode",
    }


def _memory_consumers() -> dict[str, str]:
    return {
        "buffer address": buffer_load(v(90), v(0), s(40, 4)),
        "buffer descriptor": buffer_load(v(90), v(91), s(0, 4)),
        "buffer offset": buffer_load(v(90), v(91), s(40, 4), s(0)),
        "buffer overwrite": buffer_load(v(0), v(91), s(40, 4)),
        "buffer data": f"BUFFER_STORE_DWORD_OFFEN {v(0)}, {v(91)}, {s(40, 4)}, 0, 0, 0, 0{EXEC}",
        "buffer to lds": (
            f"BUFFER_LOAD_DWORDX4_LDS_OFFEN {v(0)}, {s(40, 4)}, 0, 0, 0, 0{EXEC}, implicit $m0"
        ),
        "buffer to lds, descriptor": (
            f"BUFFER_LOAD_DWORD_LDS_OFFEN {v(91)}, {s(0, 4)}, 0, 0, 0, 0{EXEC}, implicit $m0"
        ),
        "global to lds": f"GLOBAL_LOAD_LDS_DWORDX4 {v(0, 2)}, 0, 0{EXEC}, implicit $m0",
        "global address": f"{v(90)} = GLOBAL_LOAD_DWORD {v(0, 2)}, 0, 0{EXEC}",
        "global base": f"{v(90)} = GLOBAL_LOAD_DWORD_SADDR {s(0, 2)}, {v(91)}, 0, 0{EXEC}",
        "global data": f"GLOBAL_STORE_DWORDX4 {v(92, 2)}, {v(0, 4)}, 0, 0{EXEC}",
        "lds address": f"{v(90)} = DS_READ_B32_gfx9 {v(0)}, 0, 0{EXEC}",
        "lds data": f"DS_WRITE_B64_gfx9 {v(90)}, {v(0, 2)}, 0, 0{EXEC}",
        "lds overwrite": f"{v(0)} = DS_READ_B32_gfx9 {v(90)}, 0, 0{EXEC}",
        "lds transpose": f"{v(0, 2)} = DS_READ_B64_TR_B8 {v(90)}, 0, 0{EXEC}",
        "scalar load": f"{s(90)} = S_LOAD_DWORD_IMM {s(0, 2)}, 0, 0",
        "scalar load over its base": f"{s(92, 2)} = S_LOAD_DWORDX2_IMM {s(92, 2)}, 0, 0",
        "buffer load over its address": (buffer_load(v(91), v(91), s(40, 4))),
    }


def consumers() -> dict[str, str]:
    return _matrix_consumers() | _vector_consumers() | _scalar_consumers() | _memory_consumers()


def machine_ir(bodies: list[list[str]]) -> str:
    """One function f0, f1, ... per body."""
    functions = []
    for number, body in enumerate(bodies):
        lines = "".join(f"    {line}\n" for line in [*body, "S_ENDPGM 0"])
        functions.append(f"---\nname: f{number}\nbody: |\n  bb.0:\n{lines}...\n")
    return "".join(functions)


def padded(llc: str, bodies: list[list[str]]) -> list[list[str]]:
    """What llc makes of each body: assembly lines, its nops included, the end excluded."""
    command = [
        llc,
        "-mtriple=amdgcn-amd-amdhsa",
        "-mcpu=gfx950",
        "-start-before=post-RA-hazard-rec",
    ]
    done = subprocess.run(
        [*command, "-x=mir", "-", "-o", "-"],
        input=machine_ir(bodies), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[:2000])
    found: list[list[str]] = []
    for raw in done.stdout.splitlines():
        line = raw.split(";")[0].strip()
        if raw.startswith("f") and line.endswith(":"):
            found.append([])
        elif line and raw[0] == "\t" and not line.startswith(".") and line != "s_endpgm":
            found[-1].append(line)
    return found
