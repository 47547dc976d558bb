"""Decides at which phase offsets of the two waves a steady state is replayed; best and worst of it.

Waves that barriers join keep the offset that the code gives them; what is left open is which of the
two goes on first from a barrier, and by how much. Other waves may stand anywhere in their loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from asm_overrides.timing.constants import DEFAULT, Constants
from asm_overrides.timing.ports import PortBound, port_bound
from asm_overrides.timing.replay import Replay, replay
from asm_overrides.timing.steady import Steady

SKEWS = ((0, 0), (4, 0), (0, 4), (12, 0), (0, 12))
"""Cycles by which the waves leave a barrier later."""
STARTS = 8
"""Start offsets of waves that no barrier joins, evenly over an iteration."""
_SETTLING = 8
"""Iterations that such waves are given to fall into a rhythm, and are then watched for."""


@dataclass(frozen=True)
class Prediction:
    """Both figures for a steady state, together.

    Attributes:
        bound: the port bound. best, worst: replays with the largest and smallest useful share.
    """

    steady: Steady
    bound: PortBound
    best: Replay
    worst: Replay

    def as_json(self) -> dict[str, object]:
        """The figures of one row."""
        return {
            "dtype": self.steady.element_type,
            "headdim": self.steady.headdim,
            "p_mode": self.steady.p_mode,
            "port_bound_share": round(self.bound.share, 4),
            "port_bound_limit": self.bound.limit,
            "port_cycles": self.bound.ports,
            "useful_share_replay_best": round(self.best.useful_share, 4),
            "useful_share_replay_worst": round(self.worst.useful_share, 4),
            "matrix_busy_replay_worst": round(self.worst.matrix_busy, 4),
            "cycles_per_iteration_worst": self.worst.period,
            "stalls_worst": self.worst.stalls(),
            "matrix_idle_worst": self.worst.idle_matrix(),
        }


def predict(steady: Steady, constants: Constants = DEFAULT) -> Prediction:
    """Port bound and replays over a scan of phase offsets."""
    bound = port_bound(steady, constants)
    has_barriers = any(each.opcode == "s_barrier" for track in steady.tracks for each in track.path)
    if steady.joined and has_barriers:
        replays = [replay(steady, constants, skew=skew) for skew in SKEWS]
    else:
        step = max(4, bound.cycles // STARTS // 4 * 4)
        replays = [
            replay(steady, constants, delay=step * start, warm=_SETTLING, iterations=_SETTLING)
            for start in range(STARTS)
        ]
    ranked = sorted(replays, key=lambda each: each.useful_share)
    return Prediction(steady, bound, ranked[-1], ranked[0])
