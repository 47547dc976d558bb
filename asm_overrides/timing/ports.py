"""Decides the least time that the ports of a SIMD need for a steady state, whatever the order."""

from __future__ import annotations

from dataclasses import dataclass

from asm_overrides.timing.constants import DEFAULT, VECTOR_PORTS, Constants
from asm_overrides.timing.steady import Steady


@dataclass(frozen=True)
class PortBound:
    """Cycles that one iteration of both waves takes on each port.

    Attributes:
        ports: cycles by port: "matrix", "vector", "lds", and "issue", the slots of the busier wave.
        useful: matrix cycles of Q K^T and P V.
    """

    ports: dict[str, int]
    useful: int

    @property
    def cycles(self) -> int:
        """Of the busiest port: no schedule is faster."""
        return max(self.ports.values())

    @property
    def limit(self) -> str:
        """The busiest port."""
        return max(self.ports, key=lambda port: self.ports[port])

    @property
    def share(self) -> float:
        """Share of that time in which the matrix pipe does useful work."""
        return self.useful / self.cycles


def port_bound(steady: Steady, constants: Constants = DEFAULT) -> PortBound:
    """Port sums of one iteration of both waves."""
    ports = {"matrix": 0, "vector": 0, "lds": 0}
    useful = 0
    issue = []
    for track in steady.tracks:
        slots = 0
        for place, each in enumerate(track.path):
            port, cost = each.spec.port, constants.port_cycles(each)
            slots += constants.slot
            if port == "mfma":
                ports["matrix"] += cost
                held = constants.matrix_holds_vector * constants.matrix_read(each)
                ports["vector"] += round(held)
                useful += cost * (place in track.useful)
            elif port in VECTOR_PORTS:
                ports["vector"] += cost
            elif port == "lds":
                ports["lds"] += cost
        issue.append(slots)
    return PortBound({**ports, "issue": max(issue)}, useful)
