"""Who takes part: reasons without a card or a package, and that each library is called rightly.

Libraries that are not here are replaced by stand-ins that take the arguments of the real ones,
check them and compute attention; torch's own are run on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from zyfa_triton import dispatch, flash_attn_func, quantize_fp8
from zyfa_triton.backends import device as device_backend
from zyfa_triton.benchmark import inputs, peers
from zyfa_triton.benchmark.gate import Gate
from zyfa_triton.benchmark.inputs import Problem
from zyfa_triton.benchmark.peers import aiter, cudnn_fp8, flash3, ours, requirements, torch_sdpa
from zyfa_triton.benchmark.shapes import Case, Shape
from zyfa_triton.problem import FP8
from zyfa_triton.reference import attention_ref

CPU = torch.device("cpu")
SHAPE = Shape(160, 4, 2, batch=2)
LIBRARIES = ("cudnn", "flash_attn_interface", "flash_attn_3", "aiter")


def problem(shape: Shape = SHAPE, *, quantise: bool = False) -> Problem:
    case = Case(shape, ("fp8", "bf16"), quantise)
    return inputs.make(case, None, device=CPU, l2_bytes=1)


def path(name: str, dtype: str) -> peers.Path:
    (found,) = [one for one in peers.all_paths() if (one.name, one.dtype) == (name, dtype)]
    return found


def complaint(name: str, dtype: str, made: Problem) -> str:
    """Sets a path up, calls it and judges the result."""
    call = path(name, dtype).setup(made)
    assert not isinstance(call, str), call
    return Gate(made, dtype).judge(call(made.sets[-1])).complaint


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets paths believe that the CPU is the card that they are for."""
    for module in (aiter, cudnn_fp8, flash3, ours, torch_sdpa):
        monkeypatch.setattr(module, "no_card", lambda made, vendor="": "")
    monkeypatch.setattr(device_backend, "unavailable", lambda: None)


def test_every_kernel_of_the_op_takes_part_under_our_name() -> None:
    names = {one.name for one in peers.all_paths() if one.is_ours}
    for kernel in (dispatch.AUTO, *dispatch.KERNELS):
        assert {f"zyfa-{kernel}-lean", f"zyfa-{kernel}-exact", f"zyfa-{kernel}"} <= names
    assert all(one.is_ours == (one.setup.func is ours._setup) for one in peers.all_paths()
               if hasattr(one.setup, "func"))  # fmt: skip
    keys = [(one.name, one.dtype) for one in peers.all_paths()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("one", peers.all_paths(), ids=lambda one: f"{one.name} {one.dtype}")
def test_without_a_card_every_path_gives_a_reason(
    one: peers.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    made = inputs.described(Case(SHAPE, ("fp8", "bf16")), None, CPU)
    reason = one.setup(made)
    assert isinstance(reason, str)
    assert "needs a GPU" in reason or "not import" in reason or "not installed" in reason


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements.imported("no_such_package_a", "no_such_package_b.c") == (
        "no_such_package_a is not installed; no_such_package_b is not installed"
    )
    assert requirements.imported("no_such_package_a", "json").__name__ == "json"  # type: ignore[union-attr]


def test_a_card_of_another_vendor_is_refused() -> None:
    made = SimpleNamespace(device=torch.device("cuda"))
    other = "nvidia" if torch.version.hip else "amd"
    assert requirements.no_card(made, other) == f"is for {other.upper()} GPUs"  # type: ignore[arg-type]
    assert requirements.no_card(made) == ""  # type: ignore[arg-type]


def test_the_first_line_of_an_error_is_its_reason() -> None:
    assert requirements.first_line(RuntimeError("\n no plan\nmore")) == "RuntimeError: no plan"
    assert requirements.first_line(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("name", ["zyfa-auto-lean", "zyfa-auto-exact"])
def test_our_fp8_paths_pass_the_gate(name: str, quantise: bool, on_a_card: None) -> None:
    assert complaint(name, "fp8", problem(quantise=quantise)) == ""


def test_quantising_is_the_same_work_for_us_and_for_peers(
    on_a_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scale a tensor, K's mean left in: the bits of attention on the codes that peers get."""
    made = problem(quantise=True)
    tensors = made.sets[0]
    call = path("zyfa-auto-lean", "fp8").setup(made)
    assert not isinstance(call, str)
    codes, given = [], {}
    for name in ("q", "k", "v"):
        x = getattr(tensors, name)
        one, given[f"{name}_descale"] = quantize_fp8(x, "tensor", nheads_k=SHAPE.nheads_k)[:2]
        codes.append(one)
    same = flash_attn_func(*codes, made.softmax_scale, SHAPE.causal, **given)
    assert torch.equal(call(tensors).out, same)


def test_our_bf16_path_passes_the_gate(on_a_card: None) -> None:
    assert complaint("zyfa-auto", "bf16", problem()) == ""


def test_lean_and_exact_are_not_the_same_call(on_a_card: None) -> None:
    made = problem()
    outs = []
    for name in ("zyfa-auto-lean", "zyfa-auto-exact"):
        call = path(name, "fp8").setup(made)
        assert not isinstance(call, str)
        outs.append(call(made.sets[0]).out)
    assert not torch.equal(*outs)


@pytest.mark.parametrize("causal", [True, False])
def test_torch_s_flash_passes_the_gate(causal: bool, on_a_card: None) -> None:
    assert complaint("torch-flash", "bf16", problem(Shape(160, 4, 2, causal=causal))) == ""


def test_torch_s_reason_is_what_its_warnings_say(on_a_card: None) -> None:
    reason = path("torch-cudnn", "bf16").setup(problem())
    assert isinstance(reason, str) and reason.startswith("cudnn_attention refuses: ")


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, *scales: Any
) -> torch.Tensor:
    """What the stand-ins compute, in bfloat16."""
    names = ("q_descale", "k_descale", "v_descale")
    out, _ = attention_ref(
        q, k, v, softmax_scale=scale, causal=causal, **dict(zip(names, scales, strict=False))
    )
    return out.to(torch.bfloat16)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def flash3_function(with_lse: bool) -> Callable[..., Any]:
    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        qv: None = None,
        q_descale: torch.Tensor | None = None,
        k_descale: torch.Tensor | None = None,
        v_descale: torch.Tensor | None = None,
    ) -> Any:
        assert softmax_scale is not None
        scales = (q_descale, k_descale, v_descale)
        for one in scales:
            assert (one is None) == (q.dtype != FP8)
            assert one is None or one.shape == (q.shape[0], k.shape[2])
            assert one is None or one.dtype == torch.float32
        out = attention(q, k, v, softmax_scale, causal, *scales)
        return (out, None) if with_lse else out

    return flash_attn_func


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize(("dtype", "quantise"), [("fp8", False), ("fp8", True), ("bf16", False)])
def test_flash_attention_3_gets_its_arguments(
    dtype: str, quantise: bool, with_lse: bool, on_a_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "flash_attn_interface", flash_attn_func=flash3_function(with_lse))
    assert complaint("flash-attention-3", dtype, problem(quantise=quantise)) == ""


@pytest.mark.parametrize(("dtype", "quantise"), [("fp8", False), ("fp8", True), ("bf16", False)])
def test_aiter_gets_its_arguments(
    dtype: str, quantise: bool, on_a_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None,
                        causal: bool = False) -> torch.Tensor:  # fmt: skip
        return attention(q, k, v, softmax_scale, causal)

    def flash_attn_fp8_pertensor_func(
        q: Any, k: Any, v: Any, q_descale: Any, k_descale: Any, v_descale: Any,
        causal: bool = False, window_size: Any = (-1, -1, 0), softmax_scale: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        scales = (q_descale, k_descale, v_descale)
        assert q.dtype == FP8 and all(one.shape == (1,) for one in scales)
        return attention(q, k, v, softmax_scale, causal, *scales)

    install(
        monkeypatch,
        "aiter",
        flash_attn_func=flash_attn_func,
        flash_attn_fp8_pertensor_func=flash_attn_fp8_pertensor_func,
    )
    assert complaint("aiter", dtype, problem(quantise=quantise)) == ""


class FakeTensor:
    """A tensor of cuDNN's graph: what was set on it."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def _set(self, name: str, value: Any) -> FakeTensor:
        self.given[name] = value
        return self

    def set_output(self, value: bool) -> FakeTensor:
        return self._set("output", value)

    def set_data_type(self, value: str) -> FakeTensor:
        return self._set("data_type", value)

    def set_dim(self, value: list[int]) -> FakeTensor:
        return self._set("dim", value)

    def set_stride(self, value: list[int]) -> FakeTensor:
        return self._set("stride", value)


class FakeGraph:
    """cuDNN's graph with one FP8 attention in it, executed on the CPU through dims and strides."""

    def __init__(self, handle: object, **types: str) -> None:
        self.handle = handle

    def tensor(self, **given: Any) -> FakeTensor:
        return FakeTensor(**given)

    def sdpa_fp8(self, **arguments: Any) -> tuple[FakeTensor | None, ...]:
        self.arguments = arguments
        self.results = (FakeTensor(), None, FakeTensor(), FakeTensor())
        return self.results

    def build(self, modes: list[str]) -> None:
        self.modes = modes

    def get_workspace_size(self) -> int:
        return 16

    def execute(self, values: dict[FakeTensor, torch.Tensor], workspace: Any, handle: Any) -> None:
        assert handle is self.handle and workspace.numel() >= 16
        asked = self.arguments

        def number(name: str) -> torch.Tensor:
            value = values[asked[name]]
            assert tuple(value.shape) == (1, 1, 1, 1) and value.dtype == torch.float32
            return value.flatten()

        def strided(tensor: FakeTensor) -> torch.Tensor:
            view = values[tensor].as_strided(tensor.given["dim"], tensor.given["stride"])
            return view.transpose(1, 2)

        assert number("scale_s") * number("descale_s") == 1
        out, _, amax_s, amax_o = self.results
        assert out is not None and amax_s is not None and amax_o is not None
        exact, _ = attention_ref(
            strided(asked["q"]),
            strided(asked["k"]),
            strided(asked["v"]),
            softmax_scale=asked["attn_scale"],
            causal=asked["use_causal_mask"],
            q_descale=number("descale_q"),
            k_descale=number("descale_k"),
            v_descale=number("descale_v"),
        )
        values[amax_o].fill_(exact.abs().max().item())
        scaled = exact * number("scale_o")
        assert scaled.abs().max() <= 448.5, "the output does not fit"
        strided(out).copy_(scaled.float().to(FP8))


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("headdim", [128, 192])
def test_cudnn_gets_its_graph_and_its_output_is_scaled_to_fit(
    headdim: int, quantise: bool, on_a_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        monkeypatch,
        "cudnn",
        pygraph=FakeGraph,
        create_handle=object,
        set_stream=lambda handle, stream: None,
        data_type=SimpleNamespace(FP8_E4M3="e4m3", FLOAT="float"),
        heur_mode=SimpleNamespace(A="a", FALLBACK="fallback"),
        backend_version_string=lambda: "9.19.0",
    )
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    made = problem(Shape(160, 4, 2, batch=2, headdim=headdim), quantise=quantise)
    call = path("cudnn-fp8", "fp8").setup(made)
    assert not isinstance(call, str), call
    output = call(made.sets[-1])
    assert output.out.dtype == FP8
    assert output.out.float().abs().max().item() == 448, "the scale leaves no room unused"
    assert Gate(made, "fp8").judge(output).complaint == ""


def test_what_cudnn_refuses_is_a_reason_with_its_version(
    on_a_card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**types: str) -> Any:
        raise RuntimeError("[cudnn_frontend] no engine")

    install(
        monkeypatch,
        "cudnn",
        pygraph=refuse,
        create_handle=object,
        data_type=SimpleNamespace(FP8_E4M3="e4m3", FLOAT="float"),
        backend_version_string=lambda: "9.19.0",
    )
    reason = path("cudnn-fp8", "fp8").setup(problem())
    assert reason == "cuDNN 9.19.0 refuses: RuntimeError: [cudnn_frontend] no engine"
