"""The fp32 opcodes of the vector ALU: arithmetic, transcendental, division steps, packed fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import float32
from .assumptions import Machine
from .binding import Factory, Function, Modifiers, Operation
from .float32 import F64
from .mode import Mode
from .operands import Array

OPERATIONS: dict[str, Operation] = {}


def _define(
    name: str, sources: str, function: Function, results: str = "f32", accumulates: bool = False
) -> None:
    OPERATIONS[name] = Operation(
        name, tuple(results.split()), tuple(sources.split()), function, accumulates=accumulates
    )


def _plain(function: Callable[..., Any]) -> Function:
    """A function that MODE does not change."""
    return lambda mode, *sources: function(*sources)


def _ieee(function: Callable[..., Any]) -> Function:
    """A function that needs MODE.IEEE as its last argument."""
    return lambda mode, *sources: function(*sources, mode.ieee)


def _reversed(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(b, a)


for _name, _function in {
    "v_add_f32": float32.add,
    "v_sub_f32": float32.subtract,
    "v_subrev_f32": _reversed(float32.subtract),
    "v_mul_f32": float32.multiply,
    "v_mul_legacy_f32": float32.multiply_legacy,
}.items():
    _define(_name, "f32 f32", _plain(_function))

for _name, _binary in {"v_min_f32": float32.minimum, "v_max_f32": float32.maximum}.items():
    _define(_name, "f32 f32", _ieee(_binary))

for _name, _ternary in {
    "v_min3_f32": float32.minimum3,
    "v_max3_f32": float32.maximum3,
    "v_med3_f32": float32.median3,
}.items():
    _define(_name, "f32 f32 f32", _ieee(_ternary))

_define(
    "v_minimum3_f32",
    "f32 f32 f32",
    lambda mode, a, b, c: float32.ieee_minimum(float32.ieee_minimum(a, b), c),
)
_define(
    "v_maximum3_f32",
    "f32 f32 f32",
    lambda mode, a, b, c: float32.ieee_maximum(float32.ieee_maximum(a, b), c),
)

_define("v_fma_f32", "f32 f32 f32", _plain(float32.fma))
_define("v_fmac_f32", "f32 f32", _plain(float32.fma), accumulates=True)
# dst, source, K, source: the constant is the second factor, or the addend.
_define("v_fmamk_f32", "f32 f32 f32", _plain(float32.fma))
_define("v_fmaak_f32", "f32 f32 f32", _plain(float32.fma))

for _name, _rounding in {
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_rndne_f32": np.rint,
}.items():
    _define(_name, "f32", _plain(float32.rounded(_rounding)))
_define("v_fract_f32", "f32", _plain(float32.fract))
_define("v_ldexp_f32", "f32 i32", _plain(float32.ldexp))
_define("v_frexp_mant_f32", "f32", _plain(float32.frexp_mantissa))
_define("v_frexp_exp_i32_f32", "f32", _plain(float32.frexp_exponent), results="i32")

_define("v_div_scale_f32", "f32 f32 f32", _plain(float32.div_scale), results="f32 mask")
_define("v_div_fmas_f32", "f32 f32 f32 mask", _plain(float32.div_fmas))
_define("v_div_fixup_f32", "f32 f32 f32", _plain(float32.div_fixup))


def _reciprocal(x: F64) -> F64:
    return 1.0 / x


def _reciprocal_root(x: F64) -> F64:
    # The square root of -0 is -0 and its reciprocal -inf, as the manual has it.
    return 1.0 / np.sqrt(x)


def turn_function(function: Callable[[F64], F64]) -> Callable[[F64], F64]:
    """Sine or cosine of a number of turns; the fraction of a turn is exact in float64."""
    return lambda x: function((x - np.rint(x)) * (2 * np.pi))


def _transcendental(function: Callable[[F64], F64]) -> Factory:
    def make(machine: Machine, modifiers: Modifiers) -> Function:
        return _plain(float32.transcendental(function, machine))

    return make


_DOUBLES: dict[str, Callable[[F64], F64]] = {
    "v_exp_f32": np.exp2,
    "v_exp_legacy_f32": np.exp2,
    "v_log_legacy_f32": np.log2,
    "v_log_f32": np.log2,
    "v_rcp_f32": _reciprocal,
    "v_rcp_iflag_f32": _reciprocal,
    "v_rsq_f32": _reciprocal_root,
    "v_sqrt_f32": np.sqrt,
    "v_sin_f32": turn_function(np.sin),
    "v_cos_f32": turn_function(np.cos),
}
for _name, _double in _DOUBLES.items():
    OPERATIONS[_name] = Operation(_name, ("f32",), ("f32",), factory=_transcendental(_double))

_define("v_pk_fma_f32", "pf32 pf32 pf32", _plain(float32.fma), results="pf32")
_define("v_pk_mul_f32", "pf32 pf32", _plain(float32.multiply), results="pf32")
_define("v_pk_add_f32", "pf32 pf32", _plain(float32.add), results="pf32")


def _pk_mov(mode: Mode, a: Array, b: Array) -> Array:
    """The low result is the word of source 0 that op_sel[0] names, the high one of source 1."""
    low, high = np.broadcast_arrays(a[0], b[0])
    return np.stack([low, high])


# Both words are chosen by op_sel; op_sel_hi has no part in it.
OPERATIONS["v_pk_mov_b32"] = Operation("v_pk_mov_b32", ("pb32",), ("pb32", "pb32"), _pk_mov)
