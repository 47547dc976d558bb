"""The ping-pong loop with q, k 192 and v 128: codes of the contract, bits of Triton's own loop, for
q and k in one tensor each and in two parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from tests.asm.pingpong_runs import Run, assert_codes, assert_same, run
from zyfa_triton import (
    activations,
    flash_attn_mla_func,
    offline,
    quantize_fp8,
    quantize_mla_fp8,
    splice,
)
from zyfa_triton.backends import emulated
from zyfa_triton.kernels import pingpong
from zyfa_triton.kernels.launch import launch_arguments
from zyfa_triton.problem import FP8, Problem, Rope
from zyfa_triton.testing import Inputs, make_inputs

# 1 to 10 blocks, so that the loop is left at each of its four places, with either tile of a pair
EDGES = (1, 64, 65, 129, 193, 255, 321, 385, 449, 577)
SEEDS = range(20)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does not fit is an error here, never Triton's own loop."""
    monkeypatch.setenv("ZYFA_STRICT", "1")


def inputs_of(seqlen_q: int, seqlen_k: int, **options: Any) -> Inputs:
    return make_inputs(seqlen_q, seqlen_k, **{"headdim": 192, "dtype": FP8, **options})


def apart(inputs: Inputs, *, shared: bool = False) -> tuple[Inputs, Rope]:
    """The same inputs in two parts with other strides; shared: k's rope part is that of head 0."""
    (q_nope, q_rope), (k_nope, k_rope) = (x.split((128, 64), 3) for x in (inputs.q, inputs.k))
    wide = torch.zeros((*q_rope.shape[:3], 112), dtype=torch.uint8).view(FP8)
    wide[..., 16:80] = q_rope
    k_rope = k_rope[:, :, :1] if shared else k_rope.transpose(1, 2).contiguous().transpose(1, 2)
    parts = replace(inputs, q=q_nope.contiguous(), k=k_nope.contiguous())
    return parts, (wide[..., 16:80], k_rope)


@pytest.mark.parametrize("seqlen", EDGES)
def test_lengths_around_tile_edges(seqlen: int) -> None:
    assert_codes(inputs_of(seqlen, seqlen, nheads=1, nheads_k=1))


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_modes(causal: bool, p_mode: str) -> None:
    inputs = inputs_of(300, 450, nheads=1, nheads_k=1, deviation=3.0)
    assert_codes(inputs, causal=causal, p_mode=p_mode)


SETTINGS = [
    ("lean", {"pack": "op_sel"}),
    ("lean", {"multiply_add": "packed", "row_sum": "dense"}),
    ("exact", {"multiply_add": "packed"}),
]


@pytest.mark.parametrize(("p_mode", "settings"), SETTINGS, ids=str)
def test_every_setting_gives_the_same_bits(p_mode: str, settings: dict[str, Any]) -> None:
    inputs = inputs_of(256, 400, nheads=1, nheads_k=1, deviation=2.0)
    name = "_".join(("mla_setting", p_mode, *settings.values())).replace("op_sel", "opsel")
    recipe = pingpong.PingPongLoop(
        name=name, p_mode=p_mode, is_causal=True, headdim=192, **settings
    )
    config = {**pingpong.CONFIG, "LOOP": splice.use(recipe)}
    assert_same(
        run(inputs, "pingpong", p_mode=p_mode), run(inputs, "triton", p_mode=p_mode, config=config)
    )


SHAPES = {
    "q-shorter": {"seqlen_q": 100, "seqlen_k": 300, "nheads": 1, "nheads_k": 1},
    "q-longer": {"seqlen_q": 300, "seqlen_k": 100, "nheads": 1, "nheads_k": 1},
    "gqa3-batch2": {"seqlen_q": 70, "seqlen_k": 131, "nheads": 3, "nheads_k": 1, "batch": 2},
    "transposed": {"seqlen_q": 130, "seqlen_k": 200, "nheads": 2, "layout": "transposed"},
    "packed": {"seqlen_q": 200, "seqlen_k": 200, "nheads": 1, "nheads_k": 1, "layout": "packed"},
    "v_mean": {"seqlen_q": 130, "seqlen_k": 200, "nheads": 2, "nheads_k": 1, "v_mean": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_strides_and_parts(shape: str) -> None:
    """One tensor or two parts, the ping-pong loop or Triton's: the same bits."""
    inputs = inputs_of(**SHAPES[shape])
    assert_codes(inputs)
    parts, rope = apart(inputs)
    assert_same(
        run(inputs, "pingpong"),
        run(inputs, "triton"),
        run(parts, "pingpong", rope=rope),
        run(parts, "triton", rope=rope),
    )


@pytest.mark.parametrize("kernel", ["pingpong", "triton"])
def test_all_heads_share_the_keys_rope_part(kernel: str) -> None:
    """Batch 2, 2 key heads of 4 query heads: as if the shared part stood in every head's rows."""
    inputs = inputs_of(40, 150, nheads=4, nheads_k=2, batch=2)
    parts, rope = apart(inputs, shared=True)
    assert rope[1].shape == (2, 150, 1, 64)
    k = torch.cat((parts.k, rope[1].expand(-1, -1, 2, -1)), 3)
    together = Inputs(inputs.q, k, inputs.v, *inputs.descales.values())
    assert_same(run(parts, kernel, rope=rope), run(together, kernel))


@pytest.fixture(scope="module")
def real() -> Inputs:
    """The shipped sample with a rope part, 448 tokens, 2 query heads of one key head."""
    sample = activations.load(activations.SAMPLE).cut(seqlen=448, heads=2).with_rope_part()
    (q_nope, q_rope), (k_nope, k_rope) = (x.split((128, 64), 3) for x in (sample.q, sample.k))
    codes, q_descale, k_descale = quantize_mla_fp8(q_nope, q_rope, k_nope, k_rope)
    v, v_descale = quantize_fp8(sample.v)[:2]
    q, k = torch.cat(codes[:2], 3), torch.cat(codes[2:], 3)
    return Inputs(q, k, v, q_descale, k_descale, v_descale)


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_real_activations(real: Inputs, p_mode: str) -> None:
    assert_codes(real, p_mode=p_mode)
    parts, rope = apart(real)
    assert_same(
        run(real, "triton", p_mode=p_mode), run(parts, "pingpong", p_mode=p_mode, rope=rope)
    )


@cache
def wrapping() -> tuple[Inputs, Run]:
    """9 blocks of keys, so that the rings wrap twice, with a masked tail; waves in lockstep."""
    inputs = inputs_of(256, 570, nheads=1, nheads_k=1, deviation=2.0)
    return inputs, run(inputs, "pingpong")


@pytest.mark.parametrize("seed", SEEDS)
def test_results_do_not_depend_on_the_interleaving(seed: int) -> None:
    inputs, lockstep = wrapping()
    parts, rope = apart(inputs)
    assert_same(lockstep, run(parts, "pingpong", rope=rope, seed=seed))


def test_a_rope_part_that_the_loop_cannot_load_is_refused() -> None:
    parts, (q_rope, k_rope) = apart(inputs_of(64, 64, nheads=1, nheads_k=1))
    shifted = torch.zeros(64 * 64 + 1, dtype=torch.uint8).view(FP8)[1:].view(1, 64, 1, 64)
    for rope, name in (((shifted, k_rope), "q_rope"), ((q_rope, shifted), "k_rope")):
        with pytest.raises(ValueError, match=f"{name}'s rows do not all start at multiples of 16"):
            flash_attn_mla_func(
                parts.q, rope[0], parts.k, rope[1], parts.v, kernel="pingpong", backend="emulated"
            )


def test_a_kernel_that_reads_no_parts_is_not_given_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pingpong.PingPongFamily, "reads_parts", False)
    parts, rope = apart(inputs_of(64, 64, nheads=1, nheads_k=1))
    with pytest.raises(ValueError, match='"pingpong"; it does not take q and k in two parts'):
        flash_attn_mla_func(
            parts.q, rope[0], parts.k, rope[1], parts.v, kernel="pingpong", backend="emulated"
        )


@pytest.mark.parametrize("p_mode", ["lean", "exact"])
def test_registers_and_lds(p_mode: str) -> None:
    asked = offline.problem(headdim=192, p_mode=p_mode)
    compiled, report = offline.compile_problem(asked, kernel="pingpong")
    assert not compiled.kept_own_loop
    assert report.vgprs <= 256 and report.agprs == 0
    assert report.vgpr_spills == 0 and report.sgpr_spills == 0 and report.scratch_bytes == 0
    assert report.lds_bytes == 80 * 1024


@pytest.mark.parametrize("headdim", [128, 192])
def test_lds_reads_and_writes_meet_in_no_bank(headdim: int) -> None:
    """Rows of K, of its rope part and of V: no access of 5 blocks takes a cycle more."""
    inputs = inputs_of(256, 300, nheads=1, nheads_k=1, headdim=headdim)
    problem = Problem.of(
        inputs.q, inputs.k, inputs.v, causal=False, p_mode="lean", block_scale=True,
        out_dtype=torch.bfloat16, return_lse=False,
    )  # fmt: skip
    out = torch.empty(1, 256, 1, 128, dtype=torch.bfloat16)
    arguments = launch_arguments(
        problem, inputs.q, inputs.k, inputs.v, out, None, softmax_scale=0.1, **inputs.descales
    )
    found = emulated.emulate(problem, arguments, kernel="pingpong", count_banks=True).banks
    reads: dict[str, int] = {}
    for use in found:
        assert use.conflicts == 0, use
        if not use.is_write:
            name = use.instruction.split()[0]
            reads[name] = reads.get(name, 0) + use.accesses
    # 8 waves; K is read once ahead: 4 reads a slice and block of K, 16 a block of V
    assert reads == {"ds_read_b128": 8 * 6 * 4 * headdim // 64, "ds_read_b64_tr_b8": 8 * 80}
