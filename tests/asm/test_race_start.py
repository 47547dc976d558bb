"""Kernels for Hopper start as tests/gpu/race_start.py knows: what racecheck is shown is theirs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.asm.test_hopper_compile import LEAN, Variant, compiled
from tests.gpu import race_control, race_start
from zyfa_triton.kernels.hopper.producer import PAIRS


def compiled_control(is_ordered: bool) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as triton_compile
    from triton.experimental.gluon._runtime import GluonASTSource

    constants = {(1,): race_control.ROUNDS, (2,): is_ordered}
    signature = {"out_ptr": "*i32", "ROUNDS": "constexpr", "ORDERED": "constexpr"}
    source = GluonASTSource(race_control.control, signature, constants)
    return triton_compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


BF16 = Variant(is_fp8=False, p_mode="exact", stages=2)


@pytest.mark.parametrize("variant", [LEAN, BF16], ids=str)
def test_of_the_products_kernel(variant: Variant) -> None:
    ptx = compiled(variant).asm["ptx"]
    told = [line for line in ptx.splitlines() if "+" in line and "st.shared.v2.b32" in line]
    assert len(told) >= 2 * PAIRS.value  # not by stmatrix, of which racecheck takes no notice
    changed = race_start.writers_meet(ptx)
    added = len(changed.splitlines()) - len(ptx.splitlines())
    assert added == 2  # where partitions start, and where they end


@pytest.mark.parametrize("is_ordered", [True, False])
def test_of_the_control_which_announces_what_it_wrote_if_ordered(is_ordered: bool) -> None:
    ptx = compiled_control(is_ordered).asm["ptx"]
    race_start.writers_meet(ptx)
    writer = ptx[ptx.index("ld.shared.b8") :]  # what it is to do
    told = re.findall(r"st\.shared\.v2\.b32|mbarrier\.arrive", writer)
    assert [each.startswith("st") for each in told[:2]] == [is_ordered, not is_ordered]
