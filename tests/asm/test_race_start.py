"""Kernels for Hopper start as tests/gpu/race_start.py knows: what racecheck is shown is theirs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.asm.test_hopper_compile import LEAN, Variant, compiled
from tests.gpu import race_control, race_start


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
    changed = race_start.writers_meet(ptx)
    added = len(changed.splitlines()) - len(ptx.splitlines())
    assert added == 2  # where partitions start, and where they end


def test_of_the_control_which_waits_where_it_is_ordered() -> None:
    texts = {order: compiled_control(order).asm["ptx"] for order in (True, False)}
    for text in texts.values():
        race_start.writers_meet(text)
    waits = {order: text.count("mbarrier.try_wait") for order, text in texts.items()}
    assert waits[True] >= 2 and waits[False] == 0
