"""Decides where a block's tiles lie in their rings: waiting for them, and giving them back."""

from __future__ import annotations

from asm_overrides.ptx import Text, barrier
from asm_overrides.recipes.attention_sm90.parameters import Handed

_BARRIER_BYTES = "8"


class Places:
    """Places of the next block of K and of the block of V whose P is at hand.

    The barriers of the next tiles are looked at beside the softmax, so that a tile that is there
    costs no wait. is_late: a warp arrives where a product is under way, as an arrival takes time;
    that needs registers.
    """

    def __init__(
        self, t: Text, at: Handed, stages: int, *, cluster: int = 1, is_late: bool = False
    ) -> None:
        self.t, self.at, self.stages = t, at, stages
        self.k_there, self.v_there = t.register("pred", "k_there"), t.register("pred", "v_there")
        self.once = t.register("pred", "once")
        self.is_late = is_late
        if is_late:
            self.due = t.register("pred", "due")
        self.turned = t.register("pred", "turned")
        self.lane = t.register("b32", "lane")
        self.k_barrier, self.v_barrier = t.registers("b32", "full", 2)
        self.used = t.register("b32", "used")
        self.is_shared = cluster > 1
        if self.is_shared:
            self.others, self.used_there = t.registers("b32", "there", 2)

    def enter(self) -> None:
        """Which lane arrives, and a first look. Nothing is to be given back yet."""
        self.t.op("mov.u32", self.lane, "%laneid")
        self.t.op("setp.eq.u32", self.once, self.lane, "0")
        if self.is_late:
            self.t.op("setp.ne.u32", self.due, "0", "0")
        if self.is_shared:
            barrier.there(self.t, self.others, self.at.used)
        self.look()

    def wait_for_k(self, copy: str = "") -> None:
        """Until the next block of K is there. copy: of the labels, where the text is repeated."""
        barrier.wait(self.t, f"k{copy}", self.k_there, self.k_barrier, self.at.k_phase)

    def wait_for_v(self, copy: str = "") -> None:
        """Until the block of V is there."""
        barrier.wait(self.t, f"v{copy}", self.v_there, self.v_barrier, self.at.v_phase)

    def advance(self) -> None:
        """On to the next tiles: V's is where K's was. `give_back` then gives back those before."""
        t, at = self.t, self.at
        t.op("mad.lo.u32", self.used, at.k_slot, _BARRIER_BYTES, at.used)
        if self.is_shared:
            t.op("mad.lo.u32", self.used_there, at.k_slot, _BARRIER_BYTES, self.others)
        t.op("mov.b32", at.v_slot, at.k_slot)
        t.op("mov.b32", at.v_phase, at.k_phase)
        t.op("add.s32", at.k_slot, at.k_slot, "1")
        t.op("setp.eq.s32", self.turned, at.k_slot, str(self.stages))
        t.op("mov.b32", at.k_slot, "0", when=self.turned)
        t.op("xor.b32", at.k_phase, at.k_phase, "1", when=self.turned)

    def look(self) -> None:
        """Whether the next tiles are there."""
        t, at = self.t, self.at
        t.op("mad.lo.u32", self.k_barrier, at.k_slot, _BARRIER_BYTES, at.k_full)
        t.op("mad.lo.u32", self.v_barrier, at.v_slot, _BARRIER_BYTES, at.v_full)
        barrier.look(t, self.k_there, self.k_barrier, at.k_phase)
        barrier.look(t, self.v_there, self.v_barrier, at.v_phase)

    def give_back(self) -> None:
        """This warp needs the tiles no more. Where it is late, `catch_up` says so to others."""
        if self.is_late:
            self.t.op("mov.pred", self.due, self.once)
        else:
            self._arrive(self.once)

    def catch_up(self) -> None:
        """The arrival that is due, if it is late and there is one."""
        if self.is_late:
            self._arrive(self.due)

    def _arrive(self, when: str) -> None:
        barrier.arrive(self.t, self.used, when=when)
        if self.is_shared:
            barrier.arrive_there(self.t, self.used_there, when=when)
