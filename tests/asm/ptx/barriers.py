"""Decides what barriers in shared memory (mbarrier) answer: phases, arrivals. It copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Barrier:
    """completed: phases that are over. A look with parity p asks for the phase that is over or at
    hand and has it: PTX ISA, mbarrier.test_wait."""

    arrivals: int  # of a phase
    completed: int = 0
    pending: list[int] = field(default_factory=list)  # warps that arrived in this phase

    def is_over(self, parity: int) -> bool:
        return self.completed & 1 != parity

    def arrive(self, warp: int) -> bool:
        """Whether that ended the phase."""
        self.pending.append(warp)
        if len(self.pending) < self.arrivals:
            return False
        self.complete()
        return True

    def complete(self) -> None:
        self.completed += 1
        self.pending = []


@dataclass
class Barriers:
    """Barriers by address. before_look(address), looked(address, answer, warp), arriving(address,
    warp), ended(address) and arriving_there(address, warp), at the other workgroup's barrier, are
    told of what happens."""

    at: dict[int, Barrier] = field(default_factory=dict)
    before_look: Callable[[int], None] = lambda address: None
    looked: Callable[[int, bool, int], None] = lambda address, answer, warp: None
    arriving: Callable[[int, int], None] = lambda address, warp: None
    ended: Callable[[int], None] = lambda address: None
    arriving_there: Callable[[int, int], None] = lambda address, warp: None

    def barrier(self, address: int) -> Barrier:
        if address not in self.at:
            raise ValueError(f"there is no barrier at {address:#x}")
        return self.at[address]

    def look(self, address: int, parity: int, warp: int) -> bool:
        if parity not in (0, 1):
            raise ValueError(f"the parity is {parity}")
        barrier = self.barrier(address)
        self.before_look(address)
        answer = barrier.is_over(parity)
        self.looked(address, answer, warp)
        return answer

    def arrive(self, address: int, warp: int, lanes: int) -> None:
        barrier = self.barrier(address)
        for _ in range(lanes):
            self.arriving(address, warp)
            if barrier.arrive(warp):
                self.ended(address)
