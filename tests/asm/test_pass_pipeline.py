"""All passes together: a loop with an LDS ring and matrix products runs right, and needs waits."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from asm_overrides.passes.allocate import Budget
from asm_overrides.passes.latency import Knobs
from asm_overrides.passes.pipeline import PASSES, Generated, Options, generate
from asm_overrides.passes.schedule import schedule
from asm_overrides.program import M0, Builder, LoopProgram, Stage
from asm_overrides.recipes.attention_fp8 import Parameters, build
from tests.asm.llvm import assemble
from tests.asm.loop_programs import Meaning
from tests.asm.program import Outcome, execute

WAVES = 2
TILES = 5
TILE_BYTES = WAVES * 1024
SLOTS = 3


def products() -> LoopProgram:
    """acc += A_t B_t^T (32x32 int8, one half of A a wave) over tiles that both waves load."""
    b = Builder("products")
    thread = b.vector("thread", fixed=63, read_only=True)
    source = b.scalar("source", 2, fixed=6, read_only=True)
    acc = b.vector("acc", 16, fixed=16)
    lane, offset, address = (b.vector(name) for name in ("lane", "offset", "address"))
    left, right = b.vector("left", 4), b.vector("right", 4)
    wave, m0_saved, tile, left_to_do = (
        b.scalar(name) for name in ("wave", "m0_saved", "tile", "left_to_do")
    )
    fill_at, read_at = b.scalar("fill_at"), b.scalar("read_at")
    desc = b.scalar("desc", 4)
    ring = b.ring("t", SLOTS, TILE_BYTES)

    def advance(place: object) -> None:
        b.op("s_add_u32", place, place, TILE_BYTES)  # type: ignore[arg-type]
        b.op("s_cmp_eq_u32", place, ring.end)  # type: ignore[arg-type]
        b.op("s_cselect_b32", place, 0, place)  # type: ignore[arg-type]

    def fill() -> None:
        b.op("s_lshl_b32", tile, wave, 10)
        b.op("s_add_u32", M0, fill_at, tile, role="this wave's part of the tile")
        b.op("buffer_load_dwordx4", offset, desc, 0, modifiers="offen lds", lds_writes=["t"])
        b.op("v_add_u32", offset, TILE_BYTES, offset, role="next tile")
        advance(fill_at)

    loop = b.new_label("loop")
    with b.stage("setup", "fixed"):
        b.op("s_mov_b32", m0_saved, M0)
        b.op("v_lshrrev_b32", lane, 6, thread)
        b.op("v_readfirstlane_b32", wave, lane)
        b.op("s_mov_b64", desc[0:2], source)
        b.op("s_and_b32", desc[1], desc[1], 0xFFFF)
        b.op("s_mov_b32", desc[2], TILES * TILE_BYTES)
        b.op("s_mov_b32", desc[3], 0x27000)
        b.op("v_lshlrev_b32", offset, 4, thread, role="16 bytes a lane")
        b.op("v_and_b32", lane, 63, thread)
        b.op("v_lshlrev_b32", lane, 4, lane)
        for value in (fill_at, read_at):
            b.op("s_mov_b32", value, 0)
        for dword in range(16):
            b.op("v_mov_b32", acc[dword], 0)
        for _ in range(SLOTS - 1):
            fill()
        b.op("s_mov_b32", left_to_do, TILES)
        b.label(loop)
        b.publish(t=SLOTS - 2)
        b.op("s_barrier", role="a tile is there, and the slot before it is free")
    with b.stage("product", "matrix"):
        b.op("v_add_u32", address, read_at, lane)
        b.op("ds_read_b128", right, address, modifiers="offset:1024", lds_reads=["t"])
        b.op("ds_read_b128", left, address, lds_reads=["t"])
        fill()
        b.op("v_mfma_i32_32x32x32_i8", acc, left, right, acc)
        advance(read_at)
    with b.stage("again?", "fixed"):
        b.op("s_sub_u32", left_to_do, left_to_do, 1)
        b.op("s_cmp_lg_u32", left_to_do, 0)
        b.op("s_cbranch_scc1", loop)
        b.op("s_mov_b32", M0, m0_saved)
    return b.finish(["thread", "source"], ["acc"])


@lru_cache
def generated(ordered: bool) -> Generated:
    budget = Budget((range(1, 62),), (range(8, 96),))
    return generate(
        products(), Options(budget, Knobs() if ordered else None, label_prefix=".Lproducts")
    )


STORE = "v_lshlrev_b32_e32 v62, 2, v63\n" + "\n".join(
    f"global_store_dword v62, v{16 + dword}, s[4:5]\nv_add_u32_e32 v62, {4 * 64 * WAVES}, v62"
    for dword in range(16)
)


def launched(text: str, seed: int | None = None, checks: bool = True) -> Outcome:
    return execute(
        text + STORE,
        operands().view(np.uint32).ravel(),
        waves=WAVES,
        words=16 * 64 * WAVES,
        lds=SLOTS * TILE_BYTES,
        seed=seed,
        checks=checks,
        max_wave_instructions=20_000,
    )


def operands() -> NDArray[np.int8]:
    """(TILES, 2, 64, 16): for each tile A and B, for each lane 16 bytes."""
    return np.random.default_rng(5).integers(-128, 128, (TILES, 2, 64, 16)).astype(np.int8)


def expected() -> NDArray[np.int32]:
    """(16, 2 * 64) as stored: both waves compute the same product."""
    # Lane l holds row l % 32, columns 16 * (l / 32).. of an operand.
    rows = operands().astype(np.int32).reshape(TILES, 2, 2, 32, 16).transpose(0, 1, 3, 2, 4)
    a, b = rows.reshape(TILES, 2, 32, 32).transpose(1, 0, 2, 3)
    total = np.einsum("tik,tjk->ij", a, b)
    lanes, registers = np.meshgrid(np.arange(64), np.arange(16))
    result = total[registers % 4 + 4 * (lanes // 32) + 8 * (registers // 4), lanes % 32]
    return np.tile(result, (1, WAVES)).astype(np.int32)


@pytest.mark.parametrize("ordered", [True, False], ids=["scheduled", "as written"])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_loop_computes_the_product_and_nothing_is_found(
    ordered: bool, seed: int | None
) -> None:
    outcome = launched(generated(ordered).text, seed)
    assert outcome.result.findings == []
    assert np.array_equal(outcome.words.view(np.int32).reshape(16, -1), expected())


def protective_lines() -> list[int]:
    """Lines of the scheduled text that a pass added, and the recipe's barrier."""
    found = []
    for index, line in enumerate(generated(True).text.splitlines()):
        if re.match(r"\s*s_(waitcnt|barrier|nop)\b", line):
            found.append(index)
    return found


def test_every_wait_barrier_and_nop_is_missed_when_it_is_gone() -> None:
    """But for the entry, which protects from a caller that has nothing in flight here."""
    lines = generated(True).text.splitlines()
    kept = []
    for index in protective_lines():
        without = "\n".join([*lines[:index], *lines[index + 1 :]]) + "\n"
        noticed = False
        for seed in (None, 1, 2, 3):
            outcome = launched(without, seed)
            wrong = not np.array_equal(outcome.words.view(np.int32).reshape(16, -1), expected())
            noticed = noticed or wrong or bool(outcome.result.findings)
        if not noticed:
            kept.append(re.sub(r"\s+", " ", lines[index]).strip())
    assert kept == [
        "s_waitcnt vmcnt(0) lgkmcnt(0) ; waits: what the caller started",
        "s_barrier ; waits: nobody uses LDS any more",
        "s_barrier ; waits: LDS is free again",
    ]


def test_the_report_counts_what_the_text_holds() -> None:
    done = generated(True)
    report = done.report
    opcodes = [line.text.split()[0] for line in done.program.lines if line.text]
    assert report.ports["mfma"] == 1
    assert report.ports["lds"] == 2
    assert report.waits == opcodes.count("s_waitcnt") == 4
    assert report.barriers == opcodes.count("s_barrier") == 3
    assert report.nops == opcodes.count("s_nop")
    assert report.nop_states >= report.nops
    assert report.lds_bytes == SLOTS * TILE_BYTES
    assert report.vgprs == 64
    assert tuple(report.seconds) == PASSES
    assert str(report).startswith("products: 64 VGPRs, ")
    assert sum(report.ports.values()) == len(opcodes)


def test_every_pass_can_be_looked_at() -> None:
    seen: dict[str, str] = {}
    budget = Budget((range(1, 62),), (range(8, 96),))
    done = generate(products(), Options(budget), lambda name, text: seen.update({name: text}))
    assert tuple(seen) == tuple(name for name in PASSES if name != "verify")
    assert "v_mfma_i32_32x32x32_i8 acc[0:15], left[0:3], right[0:3], acc[0:15]" in seen["schedule"]
    assert "v_mfma_i32_32x32x32_i8 v[16:31]" in seen["allocate"]
    assert "publish t 1" in seen["allocate"] and "publish" not in seen["waits"]
    assert seen["emit"] == done.text


def test_the_text_assembles_with_any_prefix(tmp_path: object) -> None:
    budget = Budget((range(1, 62),), (range(8, 96),))
    text = generate(products(), Options(budget)).text
    assert "{L}" in text
    assemble(text.replace("{L}", ".Lx"), tmp_path)  # type: ignore[arg-type]


def test_generating_twice_gives_the_same_text() -> None:
    again = generate(
        products(), Options(Budget((range(1, 62),), (range(8, 96),)), label_prefix=".Lproducts")
    )
    assert again.text == generated(True).text


VARIANTS = [
    Parameters(causal=True, p_mode="lean", pack="perm", row_sum="sparse"),
    Parameters(causal=False, p_mode="exact", pack="perm", row_sum="dense"),
    Parameters(causal=True, p_mode="lean", pack="op_sel", row_sum="sparse"),
]


@pytest.mark.parametrize("parameters", VARIANTS, ids=lambda each: each.name)
def test_the_attention_loop_fits_and_assembles(parameters: Parameters, tmp_path: object) -> None:
    budget = Budget((range(10, 256),), (range(35, 96),))
    done = generate(build(parameters), Options(budget, label_prefix=".Lattention"))
    assert done.report.vgprs <= 256
    assemble(done.text, tmp_path)  # type: ignore[arg-type]
    plans = done.report.stages
    matrix = [plan for plan in plans if plan.stage.name in ("matrix 0", "matrix 1")]
    assert len(matrix) == 2
    for plan in matrix:
        assert plan.cycles <= 1.1 * plan.matrix_cycles, plan.stage.name


def meaning(stage: Stage) -> tuple[object, ...]:
    state = Meaning()
    for op in stage.ops:
        state.run(op, {})
    kept = {place: symbol for place, symbol in state.halves.items() if place[0][0] != "%scc"}
    return kept, state.memory


@pytest.mark.parametrize("parameters", VARIANTS, ids=lambda each: each.name)
def test_scheduling_changes_nothing_that_the_attention_loop_computes(
    parameters: Parameters,
) -> None:
    program = build(parameters)
    moved = 0
    for before, after in zip(program.stages, schedule(program).stages, strict=True):
        if before.kind != "fixed":
            assert meaning(before) == meaning(after)
            moved += before.ops != after.ops
    assert moved > 10
