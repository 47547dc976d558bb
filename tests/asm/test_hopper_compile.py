"""The Hopper kernel's machine code, compiled for sm_90a without a card: instructions and spills."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.asm import sass
from zyfa_triton.kernels.hopper.launch import registers_suffice, shared_bytes
from zyfa_triton.problem import FP8, Problem

BINARIES = "backends/nvidia/bin"


class Variant(NamedTuple):
    """Constants of a compilation."""

    is_fp8: bool = True
    p_mode: str = "lean"
    headdim: int = 128
    causal: bool = True
    pack: int = 1
    block_n: int = 128
    stages: int = 5
    out: str = "bf16"
    overlap: bool = True
    cluster: int = 1
    loop: str = ""  # what takes the place of the loop over blocks that need no mask
    v_mean: bool = False

    def __str__(self) -> str:
        kind = f"e4m3-{self.p_mode}" if self.is_fp8 else "bf16"
        where = "causal" if self.causal else "full"
        order = "" if self.overlap else "-at-once"
        mean = "-v_mean" if self.v_mean else ""
        return f"{kind}-{self.headdim}-n{self.block_n}-{where}{order}{mean}"


# the order that is the default with this Triton
LEAN = Variant(overlap=registers_suffice())
VARIANTS = [
    LEAN,
    LEAN._replace(causal=False, pack=8, out="fp32"),
    LEAN._replace(headdim=192, stages=4),
    Variant(overlap=False),
    Variant(p_mode="exact"),
    LEAN._replace(v_mean=True),
    LEAN._replace(v_mean=True, headdim=192, stages=4),
    Variant(v_mean=True, p_mode="exact"),
    Variant(is_fp8=False, p_mode="exact", stages=2),
    Variant(is_fp8=False, p_mode="exact", headdim=192, stages=2),
    Variant(is_fp8=False, p_mode="exact", block_n=64, stages=5, causal=False),
]


def compiled(it: Variant) -> Any:
    """The kernel as Triton compiles it for packed tensors."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource

    from zyfa_triton.kernels.hopper.forward import hopper_attention_forward as kernel
    from zyfa_triton.kernels.hopper.launch import _REGISTERS, _layout, key_parts

    item, type_name = (1, "fp8e4nv") if it.is_fp8 else (2, "bf16")

    def descriptor(*block: int) -> str:
        return f"tensordesc<{type_name}{list(block)},{_layout(item, block[-1], len(block))!r}>"

    rest = it.headdim - 128
    q_rows = 64 // it.pack
    wide, narrow, v_block = key_parts(it.headdim, it.is_fp8, it.block_n, it.cluster)
    types: dict[str, str] = {
        "q_first": descriptor(1, it.pack, q_rows, 128),
        "k_first": descriptor(*wide),
        "v": descriptor(*v_block),
        "o_ptr": f"*{it.out}",
        "lse_ptr": "*fp32",
        "counter_ptr": "*i32",
        "softmax_scale_log2": "fp32",
    }
    constants: dict[str, Any] = {
        "IS_FP8": it.is_fp8, "P_MODE": it.p_mode, "IS_CAUSAL": it.causal, "PACK": it.pack,
        "HEAD_DIM": it.headdim, "HEAD_DIM_V": 128, "BLOCK_N": it.block_n, "STAGES": it.stages,
        "OVERLAP": it.overlap,
        "LOOP": it.loop, "CLUSTER": it.cluster,
        **_REGISTERS,
    }  # fmt: skip
    if rest:
        types |= {"q_rest": descriptor(1, it.pack, q_rows, rest)}
        types |= {"k_rest": descriptor(*narrow)}
    else:
        constants |= {"q_rest": None, "k_rest": None}
    descales = {f"{name}_descale_ptr" for name in "qkv"}
    if it.is_fp8:
        types |= dict.fromkeys(descales, "*fp32")
    else:
        constants |= dict.fromkeys(descales, None)
    if it.v_mean:
        types["v_mean_ptr"] = "*fp32"
    else:
        constants |= {"v_mean_ptr": None}
    names = kernel.arg_names
    signature = {
        name: types.get(name, "constexpr" if name in constants else "i32") for name in names
    }
    aligned = [n for n in names if signature[n].startswith("*") or n.startswith("stride_o")]
    source = GluonASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return triton_compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def assembled(ptx: str, folder: Path) -> tuple[str, Path]:
    """ptxas's report, with warnings, and the machine code; by the first one that knows the PTX."""
    import triton

    source, target = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    reports = []
    for ptxas in sorted((Path(triton.__file__).parent / BINARIES).glob("ptxas*")):
        done = subprocess.run(
            [ptxas, "-v", "-arch=sm_90a", source, "-o", target],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return done.stdout + done.stderr, target
        reports.append(done.stderr[-300:])
    raise AssertionError(f"no ptxas takes this PTX: {reports}")


def instructions(cubin: Path) -> sass.Code:
    import triton

    tool = Path(triton.__file__).parent / BINARIES / "cuobjdump"
    text = subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", text, re.MULTILINE)
    return [(int(address, 16), instruction) for address, instruction in lines]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_matrix_instructions_without_serialisation_or_spills(
    variant: Variant, tmp_path: Path
) -> None:
    kernel = compiled(variant)
    problem = Problem.of(
        *(torch.empty(1, 1, 1, width, dtype=FP8 if variant.is_fp8 else torch.bfloat16)
          for width in (variant.headdim, variant.headdim, 128)),
        causal=True, p_mode="lean", block_scale=False, out_dtype=torch.bfloat16, return_lse=True,
    )  # fmt: skip
    assert kernel.metadata.shared <= shared_bytes(problem, variant.block_n, variant.stages)
    report, cubin = assembled(kernel.asm["ptx"], tmp_path)
    # C7510 to C7512: wgmma serialised; C7508: setmaxnreg ignored
    assert "warning" not in report.lower(), report
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill", report)]
    assert max(spilled) <= 96, report  # some words a tile, outside the loops: see below
    code = instructions(cubin)
    opcode = "QGMMA" if variant.is_fp8 else "HGMMA"
    assert not sass.touched_too_early(code)
    bodies = sass.loops(code)
    assert len(bodies) == 4, len(bodies)  # two warpgroups, blocks with and without a mask
    for body in bodies:
        assert any(opcode in instruction for _, instruction in body)
        assert not any(re.search(r"\b(LDL|STL|HMMA)\b", instruction) for _, instruction in body)
        assert not sass.passed_by(body)
        # ptxas moved the last wait above the softmax, which then ran beside nothing
        for name in ("FMNMX", "MUFU.EX2" if variant.p_mode == "exact" else "F2FP"):
            assert not variant.overlap or sass.beside_products(body, name) >= 0.95, name
    assert kernel.metadata.shared <= 227 * 1024


@pytest.mark.parametrize("variant", [LEAN, VARIANTS[-3], VARIANTS[-1]], ids=str)
def test_whoever_arrives_for_others_has_met_them(variant: Variant) -> None:
    """One thread arrives at a barrier in memory for its partition: Triton has them meet before."""
    harmless = r"add|sub|mov|shl|shr|mad|mul|and|or|xor|setp|selp|elect"
    lines = [line.strip() for line in compiled(variant).asm["ptx"].splitlines()]
    lines = [line for line in lines if not re.match(r"//|\.|\$L__tmp|$", line)]
    arrivals = [at for at, line in enumerate(lines) if "mbarrier.arrive.shared" in line]
    assert len(arrivals) >= 12
    for at in arrivals:
        before = next(n for n in range(at - 1, 0, -1) if not re.match(harmless, lines[n]))
        assert re.match(r"bar\.sync\s+\d+, 128;|bar\.warp\.sync\s+-1;", lines[before]), lines[
            before : at + 1
        ]


def test_a_lean_block_takes_few_instructions(tmp_path: Path) -> None:
    """What board power pays for: a block of 64 rows and 128 keys, exponentials none."""
    _, cubin = assembled(compiled(LEAN).asm["ptx"], tmp_path)
    body = min(sass.loops(instructions(cubin)), key=len)
    names = [sass.opcode(instruction) for _, instruction in body]
    assert len(body) <= 376  # of which 64 multiplications are skipped where no maximum grew
    assert names.count("MUFU.EX2") == 2  # a row's factor each
    assert sum(name.startswith("F2FP") for name in names) == 32


def test_registers_of_matrix_instructions_under_way_are_seen() -> None:
    """The check itself: what it must find, and what it must not."""
    product = ["QGMMA.64x128x32.F32.E4M3.E4M3 R24, R164, gdesc[UR28], RZ, !UPT",
               "QGMMA.64x128x32.F32.E4M3.E4M3 R24, R168, gdesc[UR28], R24, gsb0"]  # fmt: skip
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"

    def found(*text: str) -> int:
        return len(sass.touched_too_early(list(enumerate(text))))

    for early in ("FADD R171, R1, R2", "FMNMX R3, R24, R25, !PT", "@P0 LDS.128 R160, [R165]",
                  "LDSM.16.M88.4 R84, [R2]", "STG.E [R2.64], R87"):  # fmt: skip
        harmless = "LDS.128" in early  # R160 to R163: beside the operands
        assert found(*product, early, wait) == (0 if harmless else 1), early
        assert found(*product, wait, early) == 0, early
    assert found(*product, "FADD R3, R164, R165", wait) == 0  # operands may be read
    other = ["HGMMA.64x8x16.F32.BF16 R88, gdesc[UR8], R88, gsb0"]
    assert found(*product, *other, "WARPGROUP.DEPBAR.LE gsb0, 0x1", "FADD R0, R24, R1", wait) == 0
    assert found(*product, *other, "WARPGROUP.DEPBAR.LE gsb0, 0x1", "FADD R0, R91, R1", wait) == 1


def test_what_a_branch_goes_round_is_found() -> None:
    """The reader of machine code, on code that is wrong."""
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    product = "QGMMA.64x8x32.F32.E4M3.E4M3 R8, R16, gdesc[UR4]"

    def found(*text: str) -> list[str]:
        return sass.passed_by([(16 * i, instruction) for i, instruction in enumerate(text)])

    for inside in (wait, product, "WARPGROUP.ARRIVE"):
        assert found("@P0 BRA 0x20", inside, "FMUL R0, R1, R2", "@P1 BRA 0x0") == [f"0x10 {inside}"]
        assert not found("@P0 BRA 0x10", inside, "FMUL R0, R1, R2", "@P1 BRA 0x0")
    assert not found("@!P0 BRA 0x4000", wait, "@P1 BRA 0x0")  # a waiting loop, which comes back
    assert len(found("@P0 BRA 0x30", wait, "BRA 0x40", wait, "FMUL R0, R1, R2")) == 2


def test_tile_order_covers_each_tile_once_and_the_longest_first() -> None:
    from zyfa_triton.kernels.hopper.schedule import heads_at_once, tile_of

    # the device function on numbers: gl.minimum alone is Gluon's
    function = tile_of.fn
    function.__globals__["gl"] = type("gl", (), {"minimum": staticmethod(min)})
    try:
        for m_blocks, heads, workgroups in ((1, 1, 1), (8, 5, 132), (7, 40, 20), (128, 16, 132)):
            together = heads_at_once(m_blocks, heads, workgroups)
            tiles = [function(i, m_blocks, heads, together) for i in range(m_blocks * heads)]
            assert sorted(tiles) == [(m, h) for m in range(m_blocks) for h in range(heads)]
            group = [m for m, h in tiles if h < together]
            assert group == sorted(group, reverse=True)
    finally:
        import triton.experimental.gluon.language as gl

        function.__globals__["gl"] = gl
