"""Which kernels stand behind the op, by the names that `kernel=` takes.

It knows nothing of them but the protocol, and imports no Triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zyfa_triton.kernels.family import Family, QuantisingFamily
from zyfa_triton.kernels.hip import HipFamily
from zyfa_triton.kernels.hopper.generated import PtxFamily
from zyfa_triton.kernels.hopper.launch import GluonFamily
from zyfa_triton.kernels.launch import TRITON, TritonFamily
from zyfa_triton.kernels.pingpong import PingPongFamily
from zyfa_triton.problem import Problem

_GLUON, _PTX = GluonFamily(), PtxFamily()
_ALL: tuple[Family, ...] = (TritonFamily(), PingPongFamily(), HipFamily(), _GLUON, _PTX)
FAMILIES: dict[str, Family] = {each.name: each for each in _ALL}
QUANTISING: dict[str, QuantisingFamily] = {each.name: each for each in (_GLUON, _PTX)}
KERNELS = tuple(FAMILIES)


def kernel_of(config: Mapping[str, Any]) -> str:
    """The kernel that a configuration stands for; without a name it is Triton's own loops."""
    return str(config.get("kernel", TRITON))


def misfit(name: str, target: str, problem: Problem, arguments: Mapping[str, Any]) -> str:
    """Why a kernel does not serve a call on a target; "" if it does."""
    family = FAMILIES[name]
    if family.target not in (None, target):
        return f"it is {family.target} {family.nature}"
    if arguments["k_rope_ptr"] is not None and not family.reads_parts:
        return "it does not take q and k in two parts"
    return family.misfit(problem, arguments)


def misfits(target: str, problem: Problem, arguments: Mapping[str, Any]) -> frozenset[str]:
    """The kernels of a target that do not serve a call."""
    found: set[str] = set()
    answers: dict[tuple[object, bool], str] = {}  # ptx serves what gluon does: asked once
    for name, family in FAMILIES.items():
        if family.target in (None, target):
            question = type(family).misfit, family.reads_parts
            if question not in answers:
                answers[question] = misfit(name, target, problem, arguments)
            if answers[question]:
                found.add(name)
    return frozenset(found)
