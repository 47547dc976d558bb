"""What a benchmark asks for: how FLOP are counted, which suites there are, which tensors come."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from zyfa_triton import activations, quantize_fp8
from zyfa_triton.benchmark import inputs
from zyfa_triton.benchmark.shapes import Case, Shape
from zyfa_triton.benchmark.suites import SUITES
from zyfa_triton.problem import FP8, HEADDIMS

CPU = torch.device("cpu")
L2 = 1 << 20


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("headdim", "headdim_v"), HEADDIMS)
def test_flop_are_two_products_of_the_pairs(headdim: int, headdim_v: int, causal: bool) -> None:
    shape = Shape(96, 6, 2, batch=3, headdim=headdim, headdim_v=headdim_v, causal=causal)
    q, k = torch.zeros(96, headdim), torch.zeros(96, headdim)
    with FlopCounterMode(display=False) as counted:
        (q @ k.T) @ torch.zeros(96, headdim_v)
    whole = counted.get_total_flops() * 6 * 3
    assert shape.flop == (whole // 2 if causal else whole)


def test_tflops_of_the_usual_count() -> None:
    shape = Shape(16384, 32, 32)
    assert shape.flop == 4 * 16384 * 16384 * 128 * 32 // 2
    assert shape.tflops(2e-3) == pytest.approx(shape.flop / 2e-3 / 1e12)


@pytest.mark.parametrize(
    ("shape", "label"),
    [
        (Shape(16384, 32, 32), "16K x 32"),
        (Shape(1024, 64, 8, batch=8), "1K x 64:8, batch 8"),
        (Shape(1000, 2, 2, headdim=192, causal=False), "1000 x 2, 192/128, full"),
    ],
)
def test_labels_name_what_is_not_the_rule(shape: Shape, label: str) -> None:
    assert shape.label == label
    assert Case(shape, quantise=True).label == f"{label}, quantising"


@pytest.mark.parametrize("dtypes", [(), ("fp16",), ("fp8", "e4m3")])
def test_a_case_refuses_dtypes_that_no_path_has(dtypes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="dtypes: got"):
        Case(Shape(64, 1, 1), dtypes)


def test_suites_cover_what_the_documents_promise() -> None:
    cases = [case for suite in SUITES.values() for case in suite.cases]
    shapes = [case.shape for case in cases]
    assert {1024 << power for power in range(8)} <= {shape.seqlen for shape in shapes}
    assert {8, 16, 32, 64, 128} <= {shape.nheads for shape in shapes}
    assert {1, 8} <= {shape.batch for shape in shapes}
    assert {shape.headdim for shape in shapes} == {128, 192}
    assert {shape.group_size for shape in shapes} >= {1, 8}
    assert {shape.causal for shape in shapes} == {True, False}
    prompts = SUITES["prompts"].cases
    assert {case.shape.seqlen for case in prompts if case.quantise} == {1024, 2048, 4096}
    assert {case.shape for case in prompts if case.quantise} == {
        case.shape for case in prompts if not case.quantise
    }
    for name, suite in SUITES.items():
        assert suite.name == name
        assert len(set(suite.cases)) == len(suite.cases)


def test_gaussian_inputs_and_their_codes() -> None:
    case = Case(Shape(256, 4, 2, batch=2, headdim=192), ("fp8", "bf16"))
    problem = inputs.make(case, None, device=CPU, l2_bytes=L2)
    first = problem.sets[0]
    assert problem.inputs == "gaussian"
    assert problem.softmax_scale == pytest.approx(192**-0.5)
    assert [tuple(one.shape) for one in (first.q, first.k, first.v)] == [
        (2, 256, 4, 192),
        (2, 256, 2, 192),
        (2, 256, 2, 128),
    ]
    assert first.q.std().item() == pytest.approx(1.0, abs=0.02)
    for value, code, descale in zip(
        (first.q, first.k, first.v), first.codes(), first.descales().values(), strict=True
    ):
        assert code.dtype == FP8 and descale.shape == (2, 2)
        assert descale.unique().numel() == 1, "peers take one scale a tensor"
        assert descale[0, 0].item() == pytest.approx(value.abs().max().item() / 448)
        expected = quantize_fp8(value, "tensor")[0]
        assert torch.equal(code.view(torch.uint8), expected.view(torch.uint8))
    again = inputs.make(case, None, device=CPU, l2_bytes=L2).sets[0]
    assert torch.equal(first.q, again.q) and torch.equal(first.v, again.v)
    other = inputs.make(case, None, device=CPU, l2_bytes=L2, seed=1).sets[0]
    assert not torch.equal(first.q, other.q)


def test_no_codes_where_no_fp8_path_takes_part() -> None:
    case = Case(Shape(64, 1, 1), ("bf16",))
    problem = inputs.make(case, None, device=CPU, l2_bytes=L2)
    assert problem.sets[0].q8 is None


@pytest.mark.parametrize(
    ("case", "count"),
    [
        (Case(Shape(1024, 2, 1)), 4),  # (2 + 1 + 1) * 128 KiB = 512 KiB of codes in 2 MiB
        (Case(Shape(1024, 2, 1), quantise=True), 2),  # bfloat16 is read: 1 MiB
        (Case(Shape(1024, 2, 1), ("bf16",)), 2),
        (Case(Shape(65536, 2, 1)), 2),
        (Case(Shape(64, 1, 1)), inputs.MAX_SETS),
    ],
)
def test_copies_are_twice_the_cache(case: Case, count: int) -> None:
    assert inputs.set_count(case, L2) == count


def test_copies_hold_the_same_values_elsewhere() -> None:
    problem = inputs.make(Case(Shape(1024, 2, 1)), None, device=CPU, l2_bytes=L2)
    assert len(problem.sets) == 4
    names = [field.name for field in dataclasses.fields(problem.sets[0])]
    for name in names:
        copies = [getattr(one, name) for one in problem.sets]
        assert len({one.data_ptr() for one in copies}) == 4, name
        raw = [one.contiguous().view(torch.uint8) for one in copies]
        assert all(torch.equal(raw[0], one) for one in raw), name


def captured(nheads: int, nheads_k: int, seqlen: int = 40) -> activations.Activations:
    return activations.gaussian(seqlen=seqlen, nheads=nheads, nheads_k=nheads_k)


def test_captured_queries_stay_with_their_key_head() -> None:
    real = captured(6, 2)  # key head 0 has queries 0 to 2, key head 1 has 3 to 5
    case = Case(Shape(32, 12, 3, batch=2), ("bf16",))
    problem = inputs.make(case, real, device=CPU, l2_bytes=L2)
    made = problem.sets[0]
    assert problem.inputs == real.name
    assert problem.softmax_scale == real.softmax_scale
    heads = [0, 1, 2, 0, 3, 4, 5, 3, 0, 1, 2, 0]  # groups of four; key head 2 is the first again
    for batch in range(2):
        assert torch.equal(made.q[batch], real.q[0, :32][:, heads])
        assert torch.equal(made.k[batch], real.k[0, :32][:, [0, 1, 0]])
        assert torch.equal(made.v[batch], real.v[0, :32][:, [0, 1, 0]])


def test_captured_tokens_repeat_and_the_name_says_so() -> None:
    real = captured(1, 1)
    problem = inputs.make(Case(Shape(100, 2, 2), ("bf16",)), real, device=CPU, l2_bytes=L2)
    assert problem.inputs == f"{real.name} repeated to 100 tokens"
    made = problem.sets[0]
    assert torch.equal(made.k[0, 40:80, 1], real.k[0, :, 0])
    assert torch.equal(made.k[0, 80:, 0], real.k[0, :20, 0])


def test_captured_inputs_of_another_head_dim_are_refused() -> None:
    case = Case(Shape(32, 1, 1, headdim=192))
    with pytest.raises(ValueError, match="head dims 128/128, the shape 192/128"):
        inputs.make(case, captured(1, 1), device=CPU, l2_bytes=L2)
