"""The generated loop on e4m3 in the Hopper kernel's machine code, compiled without a card."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton import knobs

from tests.asm import sass
from tests.asm.test_hopper_compile import Variant, compiled, instructions
from zyfa_triton.kernels.hopper.generated import CLUSTERS
from zyfa_triton.kernels.hopper.launch import registers_suffice
from zyfa_triton.kernels.hopper.loop import loop_of
from zyfa_triton.kernels.hopper.values import BEHIND

STAGES = {128: 6, 192: 4}
SCORES = 64  # of a lane in a block
STEPS = 4  # products of 32 keys
MEAN_LOADS = 16  # of a lane's 32 columns
STORES = 8  # of 8 outputs


@pytest.mark.parametrize("v_mean", [False, True], ids=["plain", "v_mean"])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_a_block_runs_without_spills_and_with_few_instructions(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    p_mode: str,
    headdim: int,
    cluster: int,
    v_mean: bool,
) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")  # ptxas's report: nothing serialised
    stages, overlap = STAGES[headdim], registers_suffice()
    loop = loop_of(headdim, p_mode, stages, overlap, True, cluster)
    it = Variant(
        p_mode=p_mode, headdim=headdim, stages=stages, overlap=overlap, cluster=cluster, loop=loop
    )
    kernel = compiled(it._replace(v_mean=v_mean))
    assert kernel.metadata.splice == loop
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    code = instructions(cubin)
    assert not sass.touched_too_early(code)
    assert not any(sass.passed_by(body) for body in sass.loops(code))
    columns = "64x136x32" if BEHIND.value else "64x8x32"
    # the loop over masked blocks has its row sum apart, too: it is the other one that converts once
    found = [
        body
        for body in sass.loops(code)
        if any(columns in text for _, text in body)
        and any("PHASECHK.TRANS64 P" in text for _, text in body)  # looks, without waiting
    ]
    assert len(found) == 2  # warpgroups
    # with V's mean, eight bytes a load, of two warpgroups; what is stored stays 16 bytes wide
    loads = sum(sass.opcode(text).startswith("LDG.E.64") for _, text in code)
    assert loads == (2 * MEAN_LOADS if v_mean else 0)
    assert sum("STG.E.128" in text for _, text in code) == 2 * STORES
    copies = [text for _, text in code if sass.opcode(text).startswith("UTMALDG")]
    shared = sum("MULTICAST" in text for text in copies)
    parts = 2 if headdim == 128 else 3  # of a block: K, V
    if cluster == 1:
        assert shared == 0
    else:
        assert shared >= parts and len(copies) - shared == 2 * (parts - 1)  # Q's two
    for body in found:
        names = [sass.opcode(text) for _, text in body]
        assert not {"LDL", "STL", "MEMBAR"} & {name.split(".")[0] for name in names}
        there = [name for name in names if name.startswith("SYNCS.ARRIVE.TRANS64.RED")]
        assert len(there) == cluster - 1
        assert sum(name.startswith("QGMMA.64x128") for name in names) == headdim // 32 + (
            0 if BEHIND.value else STEPS
        )
        waits = [at for at, name in enumerate(names) if name.startswith("WARPGROUP.DEPBAR")]
        beside = names[waits[0] : waits[-1]]
        if p_mode == "lean":
            # packed maxima find the largest code; those over scores lie behind the vote
            assert names.count("VIMNMX3.U16x2") >= SCORES // 4 - 2
            vote = beside.index("VOTE.ANY")
            assert not any(name.startswith("FMNMX") for name in beside[:vote])
            assert sum(name.startswith("FFMA") for name in beside[:vote]) == SCORES
            assert sum(name.startswith("F2FP") for name in beside[:vote]) == SCORES // 2
            assert vote < 160
        else:
            assert names.count("MUFU.EX2") == SCORES + 2
            assert sum(name.startswith("MUFU.EX2") for name in beside) == SCORES + 2


def test_a_cluster_that_nobody_makes_does_not_assemble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One workgroup alone would wait for what the other copies for ever."""
    from triton.runtime.errors import PTXASError

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    it = Variant(stages=STAGES[128], overlap=registers_suffice(), cluster=2)
    loop = loop_of(128, "lean", it.stages, it.overlap, True, 2)
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", None)
    with pytest.raises(PTXASError):
        compiled(it._replace(loop=loop))
