"""Triton's interpreter as a back end: the real kernel, against fp64 and against the contract."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import zyfa_triton
from zyfa_triton import flash_attn_func
from zyfa_triton.backends import interpreter
from zyfa_triton.problem import FP8
from zyfa_triton.testing import LAYOUTS, Inputs, check_lse, check_output, expected, make_inputs

CAN_SCALE = interpreter._has_scaled_dot()


def attend(x: Inputs, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    options |= {"backend": "interpreter", "v_mean": x.v_mean, **x.descales}
    result = flash_attn_func(x.q, x.k, x.v, causal=True, return_lse=True, **options)
    assert isinstance(result, tuple)
    return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("lengths", [(1, 1), (65, 130), (130, 65)], ids=str)
def test_16_bit_inputs_are_multiplied_as_numbers(
    lengths: tuple[int, int], dtype: torch.dtype
) -> None:
    x = make_inputs(*lengths, dtype=dtype)
    out, lse = attend(x)
    ref, low = expected(x, causal=True)
    check_output(out, ref[0], low[0], is_fp8=False)
    check_lse(lse, ref[1], low[1], x)
    assert float((out.double() - ref[0]).norm()) <= 3e-3 * float(ref[0].norm())


@pytest.mark.parametrize("headdim", [128, 192])
@pytest.mark.parametrize(
    ("p_mode", "block_scale"),
    [("lean", True), ("exact", True), ("lean", False), ("exact", False), ("unscaled", False)],
)
def test_e4m3_agrees_with_the_contract(p_mode: Any, block_scale: bool, headdim: int) -> None:
    """Up to the order of sums: an odd P code may round the other way, a row may not be wrong."""
    x = make_inputs(70, 130, headdim=headdim, dtype=FP8)
    if block_scale and not CAN_SCALE:  # Triton 3.6
        with pytest.raises(zyfa_triton.BackendUnavailableError, match=r"no tl.dot_scaled"):
            attend(x, p_mode=p_mode, block_scale=block_scale)
        return
    out = torch.full((1, 70, 4, 128), float("nan"))
    _, lse = attend(x, p_mode=p_mode, block_scale=block_scale, out=out)
    contract = torch.empty_like(out)
    _, contract_lse = flash_attn_func(
        x.q, x.k, x.v, causal=True, p_mode=p_mode, block_scale=block_scale, return_lse=True,
        out=contract, **x.descales,
    )  # fmt: skip
    assert float((out - contract).norm() / contract.norm()) < 1e-4
    torch.testing.assert_close(lse, contract_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(70, 130), (130, 70)], ids=str)
@pytest.mark.parametrize("headdim", [128, 192])
def test_a_mean_of_v_is_its_heads_and_of_any_strides(
    headdim: int, lengths: tuple[int, int]
) -> None:
    x = make_inputs(*lengths, batch=2, headdim=headdim, dtype=FP8, v_mean=True)
    assert x.v_mean is not None
    wide = torch.full((2, 3, 131), float("nan"))
    wide[:, 1:, 2:130] = x.v_mean
    out = torch.full((2, lengths[0], 4, 128), float("nan"))
    _, lse = attend(replace(x, v_mean=wide[:, 1:, 2:130]), block_scale=False, out=out)
    contract = torch.empty_like(out)
    _, contract_lse = flash_attn_func(
        x.q, x.k, x.v, causal=True, block_scale=False, return_lse=True, out=contract,
        v_mean=x.v_mean, **x.descales,
    )  # fmt: skip
    torch.testing.assert_close(out, contract, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse, contract_lse, rtol=1e-5, atol=1e-5)
    assert not out[:, : max(lengths[0] - lengths[1], 0)].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_reach_the_kernel(layout: str) -> None:
    for dtype in (FP8, torch.bfloat16):
        x = make_inputs(66, 66, batch=2, nheads=2, nheads_k=1, dtype=dtype, layout=layout)
        buffer = torch.full((2, 3, 70, 192), float("nan")).to(torch.bfloat16)
        out = buffer[:, :2, 3:69, 32:160].transpose(1, 2)
        attend(x, out=out, block_scale="auto" if CAN_SCALE else False)
        contiguous = Inputs(
            x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), *x.descales.values()
        )
        same, _ = attend(contiguous, block_scale="auto" if CAN_SCALE else False)
        assert torch.equal(out, same)
        assert int(buffer.isfinite().sum()) == out.numel()


def test_an_old_interpreter_says_that_it_cannot_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_has_scaled_dot", lambda: False)
    with pytest.raises(zyfa_triton.BackendUnavailableError, match=r"no tl.dot_scaled.*block_scale"):
        attend(make_inputs(3, 3, dtype=FP8))


def test_a_failure_brings_the_traceback_and_the_next_call_works() -> None:
    x = make_inputs(3, 3)
    with pytest.raises(interpreter.InterpreterError, match=r"(?s)quantize failed.*Traceback"):
        interpreter.call("quantize", x.q, None, None, None)
    assert bool(attend(x)[0].isfinite().all())


def test_a_dead_child_is_reported_and_replaced() -> None:
    x = make_inputs(3, 3)
    attend(x)
    process = interpreter._worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert bool(attend(x)[0].isfinite().all())


def test_an_interrupted_call_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = make_inputs(3, 3), make_inputs(5, 5, seed=1)

    def interrupted(stream: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(interpreter, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            attend(x)
    ref, _ = expected(other, causal=True)
    torch.testing.assert_close(attend(other)[0].double(), ref[0], rtol=2**-6, atol=2**-6)


IN_PROCESS = """
import torch
from zyfa_triton import dispatch, flash_attn_func
from zyfa_triton.backends import interpreter
from zyfa_triton.testing import make_inputs

x = make_inputs(33, 40)
ours = flash_attn_func(x.q, x.k, x.v, causal=True, backend="interpreter")
assert interpreter._worker._process is None
exact = flash_attn_func(x.q, x.k, x.v, causal=True)
torch.testing.assert_close(ours, exact, rtol=2**-6, atol=2**-8)
found = {one.backend: one for one in dispatch.capabilities()}
assert "this process" in found["interpreter"].detail
assert "TRITON_INTERPRET" in found["device"].reason, found["device"]
"""


def test_with_triton_interpret_set_the_kernel_runs_in_the_process() -> None:
    """So that a debugger can step through it."""
    from zyfa_triton import env

    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS],
        cwd=Path(zyfa_triton.__file__).parent.parent,
        env=env.child_environment({"TRITON_INTERPRET": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
