"""The example kernel, as gfx950 machine code: right, trusted, and really windowed and capped."""

from __future__ import annotations

import pytest
import torch
import triton

from examples import sliding_window
from zyfa_triton.measure import relative_error
from zyfa_triton.prototype import Trial, compile_for_gfx950, try_on_gfx950

SEQLEN = 300
OPTIONS = {"num_warps": 4, "num_stages": 1, "matrix_instr_nonkdim": 32, "waves_per_eu": 2}


def launch(seed: int | None = None) -> tuple[torch.Tensor, torch.Tensor, Trial]:
    arguments, constants, truth = sliding_window.launch_arguments(SEQLEN)
    trial = try_on_gfx950(
        sliding_window.window_attention,
        (triton.cdiv(SEQLEN, 128),),
        arguments,
        constants,
        outputs=("o_ptr",),
        seed=seed,
        **OPTIONS,
    )
    out = arguments["o_ptr"]
    assert isinstance(out, torch.Tensor)
    return out, truth, trial


@pytest.fixture(scope="module")
def lockstep() -> tuple[torch.Tensor, torch.Tensor, Trial]:
    return launch()


def test_output_is_right_and_nothing_is_found(
    lockstep: tuple[torch.Tensor, torch.Tensor, Trial],
) -> None:
    out, truth, trial = lockstep
    assert not out.isnan().any()
    assert relative_error(out, truth) < 0.01
    assert trial.findings == []
    assert trial.report.vgpr_spills == 0
    assert trial.wave_instructions > 0


def test_order_of_the_waves_does_not_matter(
    lockstep: tuple[torch.Tensor, torch.Tensor, Trial],
) -> None:
    out, _, trial = launch(seed=5)
    assert torch.equal(out, lockstep[0])
    assert trial.findings == []


def test_window_and_cap_make_a_difference(
    lockstep: tuple[torch.Tensor, torch.Tensor, Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = lockstep[0]
    for name, value in (("WINDOW", SEQLEN), ("SOFTCAP", 1e6)):
        with monkeypatch.context() as patch:
            patch.setattr(sliding_window, name, value)
            (q, k, v), qk_scale, v_scale = sliding_window.sample(SEQLEN)
            without = sliding_window.reference(q, k, v, qk_scale, v_scale)
        assert relative_error(out, without) > 0.05, name


def test_a_kernel_can_be_compiled_for_tensors_without_data() -> None:
    shape = (4096, 128)
    tensors = {
        name: torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta")
        for name in ("q_ptr", "k_ptr", "v_ptr")
    }
    out = torch.empty(shape, device="meta")
    arguments = {**tensors, "o_ptr": out, "qk_scale": 0.1, "v_scale": 1.0, "seqlen": 4096}
    constants = {"WINDOW": 512, "SOFTCAP": 30.0, "HEAD_DIM": 128, "BLOCK_M": 128, "BLOCK_N": 64}
    compiled, report = compile_for_gfx950(
        sliding_window.window_attention, arguments, constants, **OPTIONS
    )
    assert compiled.hsaco.startswith(b"\x7fELF")
    assert report.loops[0].mfma_cycles == 9 * 64
    assert report.name == "window_attention"
    assert report.loops[0].transcendental_instructions >= 2 * 32  # exp and reciprocal a score
