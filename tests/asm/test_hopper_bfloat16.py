"""The generated loop on bfloat16 in the Hopper kernel's machine code, compiled without a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.asm import sass
from tests.asm.test_hopper_compile import Variant, compiled, instructions
from zyfa_triton.kernels.hopper.loop import loop_of

STAGES = 2
SCORES = 64  # of a lane in a block
KEYS = 128


def spliced(headdim: int, overlap: bool) -> tuple[str, Any]:
    loop = loop_of(headdim, "exact", STAGES, overlap, False)
    it = Variant(is_fp8=False, p_mode="exact", headdim=headdim, stages=STAGES, overlap=overlap)
    return loop, compiled(it._replace(loop=loop))


def blocks(body: sass.Code) -> list[sass.Code]:
    """A loop's body, cut behind each wait for all matrix instructions."""
    ends = [
        at + 1
        for at, (_, text) in enumerate(body)
        if sass.opcode(text).startswith("WARPGROUP.DEPBAR") and text.rstrip().endswith("0x0")
    ]
    return [body[first:last] for first, last in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("overlap", [True, False], ids=["referred", "late"])
@pytest.mark.parametrize("headdim", [128, 192])
def test_products_run_beside_the_softmax_without_spills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, headdim: int, overlap: bool
) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")  # ptxas's report: no spills, nothing serialised
    loop, kernel = spliced(headdim, overlap)
    assert kernel.metadata.splice == loop
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    code = instructions(cubin)
    assert not sass.touched_too_early(code)
    assert not any(sass.passed_by(body) for body in sass.loops(code))
    assert not any(sass.opcode(text) in ("LDL", "STL") for _, text in code)
    products = headdim // 16 + KEYS // 16
    # two blocks, one for each set of P
    found = [body for body in sass.loops(code) if str(body).count("HGMMA") == 2 * products]
    assert len(found) == 2  # warpgroups
    for body in found:
        assert len(blocks(body)) == 2
        for block in blocks(body):
            names = [sass.opcode(text) for _, text in block]
            assert sum(name.startswith("HGMMA") for name in names) == products
            # once for P, once where the reference has to move, and the factors of two rows
            assert names.count("MUFU.EX2") == 2 * SCORES + 2
            assert sum(name.startswith("F2FP.BF16") for name in names) == SCORES
            assert sum(name.startswith("VIMNMX3.U16x2") for name in names) == SCORES // 4 - 1
            for name in ("MUFU.EX2", "F2FP.BF16", "FMNMX", "VIMNMX3"):
                assert sass.beside_products(block, name) == 1, name
