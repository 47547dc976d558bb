"""Where a call runs: one module a back end, and what each of them must provide.

It does not choose between them (`zyfa_triton.dispatch`). Every module here has

- `unavailable() -> Unavailable | None`: why it cannot run in this process, and what to do; None
  where it can;
- `describe() -> str`: what it would run on, in a few words; called only where it can run;
- `run(problem, kernel, q, k, v, out, lse, *, softmax_scale, q_descale, k_descale, v_descale,
  v_mean=None, config=None)`: fills `out` (batch, seqlen_q, nheads, headdim_v) and `lse` (float32,
  (batch, nheads, seqlen_q), contiguous, or None). q, k and v have any strides with a unit last one;
  descales are None or float32 (batch, nheads_k) of any strides; `v_mean` is None or float32
  (batch, nheads_k, headdim_v) with a unit last stride; `kernel` is a name of
  `dispatch.KERNELS`; `config` overrides the tuned configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("device", "interpreter", "emulated", "reference")


@dataclass(frozen=True)
class Unavailable:
    """Why a back end cannot run here, and what would make it run."""

    reason: str
    remedy: str


class BackendUnavailableError(RuntimeError):
    """A back end was asked for by name, or was the only one for a device, and cannot run here."""

    def __init__(self, backend: str, why: Unavailable) -> None:
        super().__init__(f'backend="{backend}" cannot run here: {why.reason}. {why.remedy}')
        self.backend = backend
        self.reason = why.reason
        self.remedy = why.remedy
