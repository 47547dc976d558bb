"""Decides which memory accesses of different waves nothing orders; does not know what they carry.

Time is counted in barriers. An access belongs to every epoch from its issue to the wait that covers
it; two accesses of different waves to one place race if they share an epoch and one of them writes,
whichever of them this run happened to execute first. An LDS-direct load is an agent of its own
until its wave has waited for it, so that the wave's own reads race with it too.

Of global memory only stores are watched: two waves must not write one byte, unless they belong to
one workgroup and a barrier lies between.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asm_overrides.emulator.findings import FindingLog
from asm_overrides.isa.instruction import Instruction

_AGENTS = 128
"""Tags are epoch * _AGENTS + agent."""
_WAVES = 32
_IN_FLIGHT = 1
"""An agent is wave + _WAVES * sort; the sort is 0 for what a wave does itself."""

Indices = NDArray[np.int64]


@dataclass(slots=True)
class Access:
    """What one instruction of one group of waves does to LDS.

    Attributes:
        direct: True for a load that writes LDS by itself.
        parts: (is_write, places by wave) for each access reported.
    """

    instruction: Instruction
    first: int
    direct: bool
    parts: list[tuple[bool, list[Indices]]] = field(default_factory=list)


class LdsRaces:
    """Watches the LDS of one workgroup.

    Places are dwords, or bytes for a program that has accesses of less than a dword.
    """

    def __init__(self, size: int, waves: int, unit: int, log: FindingLog) -> None:
        places = (size + 19) // unit + 1
        self._log = log
        self._unit = unit
        self._written = np.full(places, -1, np.int32)
        self._read = np.full(places, -1, np.int32)
        self._read_by_many = np.full(places, -1, np.int32)
        self._changed = np.full(places, -1, np.int32)  # by atomics
        self._undefined = np.ones(places, np.bool_)
        self._value = np.zeros(places, np.uint32)
        self._epoch = 0
        self._direct: list[deque[Access]] = [deque() for _ in range(waves)]
        self._plain: list[deque[Access]] = [deque() for _ in range(waves)]
        self._current: Access | None = None

    def issue(self, instruction: Instruction, first: int, end: int, direct: bool) -> None:
        """Waves first..end-1 issue an LDS instruction; its accesses follow with `access`."""
        self._current = Access(instruction, first, direct)
        for queue in (self._direct if direct else self._plain)[first:end]:
            queue.append(self._current)

    def access(
        self,
        addresses: NDArray[np.int64],
        size: int,
        is_write: bool,
        lanes: NDArray[np.bool_] | None,
        data: NDArray[np.uint32] | None = None,
    ) -> None:
        """Lanes touch `size` bytes at byte addresses (waves, 64); lanes None means all.

        `data` is what a write brings, (dwords, waves, 64): rows that several waves hold are stored
        by all of them, and writes of one value do not race with each other.
        """
        current = self._current
        assert current is not None
        places = self._places(addresses, size, lanes)
        if lanes is None:
            by_wave = list(places)
        else:
            by_wave = [places[wave][lanes[wave]] for wave in range(len(places))]
        current.parts.append((is_write, by_wave))
        values = None if data is None else self._values_by_place(data, size, places.shape[2])
        if not is_write:
            self._check_defined(current, by_wave)
        for wave, where in enumerate(by_wave, start=current.first):
            if where.size:
                row = wave - current.first
                brought = None
                if values is not None:
                    brought = values[row] if lanes is None else values[row][lanes[row]]
                self._mark(current, wave, where, is_write, brought)
        if is_write:
            for where in by_wave:
                self._undefined[where] = False

    def complete(self, wave: int, direct: int, plain: int) -> None:
        """The wave has waited: at most `direct` and `plain` accesses are still in flight."""
        queue = self._direct[wave]
        while len(queue) > direct:
            self._arrived(wave, queue.popleft())
        others = self._plain[wave]
        while len(others) > plain:
            others.popleft()

    def barrier(self) -> None:
        """All waves meet: a new epoch, in which what is in flight goes on."""
        self._epoch += 1
        self._current = None
        for queues in (self._direct, self._plain):
            for wave, queue in enumerate(queues):
                for access in queue:
                    for is_write, by_wave in access.parts:
                        where = by_wave[wave - access.first]
                        if where.size:
                            self._mark(access, wave, where, is_write)

    def _places(
        self, addresses: NDArray[np.int64], size: int, lanes: NDArray[np.bool_] | None
    ) -> Indices:
        """(waves, 64, n) places that each lane touches; addresses of lanes off mean nothing."""
        touched = addresses if lanes is None else addresses[lanes]
        first = addresses // self._unit
        count = (size + self._unit - 1) // self._unit
        if self._unit > 1 and (touched % self._unit).any():
            count += 1
        return first[..., None] + np.arange(count)

    def _values_by_place(
        self, data: NDArray[np.uint32], size: int, places: int
    ) -> NDArray[np.uint32] | None:
        """(waves, 64, places) of what a write brings; None if it straddles dwords."""
        by_lane = np.moveaxis(data, 0, -1)
        if self._unit == 1:
            octets = np.ascontiguousarray(by_lane).view(np.uint8)[..., :size]
            return octets.astype(np.uint32)
        return by_lane if by_lane.shape[2] == places else None

    def _check_defined(self, access: Access, by_wave: list[Indices]) -> None:
        for wave, where in enumerate(by_wave, start=access.first):
            undefined = self._undefined[where]
            if undefined.any():
                place = int(where[undefined][0]) * self._unit
                self._log.add(
                    "lds-uninitialised",
                    wave,
                    access.instruction,
                    f"reads LDS byte {place} before anything was written there",
                )

    def _racing(self, tags: NDArray[np.int32], agent: int, own: bool) -> NDArray[np.bool_] | None:
        """Which tags are of this epoch and of an agent that races with this one; None: none.

        Accesses of one wave do not race with each other; `own`: not even with an LDS-direct load
        of the same wave.
        """
        now = self._epoch * _AGENTS
        others = (tags >= now) & (tags != now + agent)
        if not others.any():
            return None
        found = tags - now
        same_wave = found % _WAVES == agent % _WAVES
        in_flight = (found // _WAVES == _IN_FLIGHT) | (agent // _WAVES == _IN_FLIGHT)
        others &= ~(same_wave & (own | ~in_flight))
        return others if others.any() else None

    def _mark(
        self,
        access: Access,
        wave: int,
        where: Indices,
        is_write: bool,
        brought: NDArray[np.uint32] | None = None,
    ) -> None:
        """Note an access in this epoch; report what it races with."""
        now = self._epoch * _AGENTS
        agent = wave + _WAVES * _IN_FLIGHT * access.direct
        atomic = access.instruction.spec.access == "atomic"
        if atomic and not is_write:
            return  # its write stands for its read
        written = self._written[where]
        racing = self._racing(written, agent, False)
        if brought is not None and not atomic:
            if racing is not None and not access.direct:
                plain = (written - now) // _WAVES == 0
                racing &= ~plain | (self._value[where] != brought)
            self._value[where] = brought
        if racing is not None and racing.any():
            self._report(access, wave, where, racing, written, is_write, True)
        if not atomic:
            changed = self._changed[where]
            racing = self._racing(changed, agent, False)
            if racing is not None:
                self._report(access, wave, where, racing, changed, is_write, True)
        read = self._read[where]
        if not is_write:
            by_other = (read >= now) & (read != now + agent)
            if by_other.any():
                self._read_by_many[where[by_other]] = self._epoch
            self._read[where] = now + agent
            return
        racing = self._racing(read, agent, True)
        many = self._read_by_many[where] == self._epoch
        if many.any():
            racing = many if racing is None else racing | many
        if racing is not None:
            self._report(access, wave, where, racing, read, True, False)
        if access.direct and self._plain[wave]:
            self._check_own(access, wave, where)
        (self._changed if atomic else self._written)[where] = now + agent

    def _check_own(self, access: Access, wave: int, where: Indices) -> None:
        """An LDS-direct load and LDS accesses of the same wave that it has not waited for."""
        for other in self._plain[wave]:
            for _, by_wave in other.parts:
                common = np.intersect1d(where, by_wave[wave - other.first])
                if common.size:
                    self._log.add(
                        "lds-race",
                        wave,
                        access.instruction,
                        f"may overwrite LDS byte {int(common[0]) * self._unit} before this wave's "
                        f"line {other.instruction.line} `{other.instruction.text}` has used it: "
                        "no lgkmcnt wait in between",
                    )
                    return

    def _arrived(self, wave: int, access: Access) -> None:
        """A wave has waited for its LDS-direct load: from now on it is a write of this wave."""
        now = self._epoch * _AGENTS
        for _, by_wave in access.parts:
            where = by_wave[wave - access.first]
            if where.size:
                mine = self._written[where] == now + wave + _WAVES * _IN_FLIGHT
                self._written[where[mine]] = now + wave

    def _report(
        self,
        access: Access,
        wave: int,
        where: Indices,
        racing: NDArray[np.bool_],
        tags: NDArray[np.int32],
        is_write: bool,
        other_writes: bool,
    ) -> None:
        place = int(where[racing][0]) * self._unit
        sort, other = divmod(int(tags[racing][0]) % _AGENTS, _WAVES)
        verb = "writes" if is_write else "reads"
        other_verb = "writes" if other_writes else "reads"
        if sort == _IN_FLIGHT and other == wave:
            who = "an LDS-direct load of the same wave that no vmcnt wait covers yet, which"
        elif sort == _IN_FLIGHT:
            who = f"an LDS-direct load of wave {other}, in flight, which"
        elif other == wave:
            who = "several waves, which"
        else:
            who = f"wave {other}, which"
        self._log.add(
            "lds-race",
            wave,
            access.instruction,
            f"{verb} LDS byte {place} with no barrier between it and {who} {other_verb} it",
        )


_REGION_BITS = 22


class GlobalRaces:
    """Watches the stores of all workgroups of a run (of one process)."""

    def __init__(self, log: FindingLog) -> None:
        self._log = log
        self._regions: dict[int, NDArray[np.int64]] = {}
        self._workgroup = 0
        self._epoch = 0

    def start(self) -> None:
        """A workgroup begins."""
        self._workgroup += 1
        self._epoch = 0

    def barrier(self) -> None:
        """All waves of the workgroup meet."""
        self._epoch += 1

    def store(
        self,
        instruction: Instruction,
        first: int,
        addresses: NDArray[np.uint64],
        size: int,
        lanes: NDArray[np.bool_] | None,
    ) -> None:
        """Lanes of waves first.. write `size` bytes at global addresses (waves, 64)."""
        if instruction.spec.access == "atomic":
            return
        for row in range(len(addresses)):
            chosen = addresses[row] if lanes is None else addresses[row][lanes[row]]
            places = (chosen.astype(np.int64)[:, None] + np.arange(size)).ravel()
            for region in np.unique(places >> _REGION_BITS).tolist():
                inside = places[places >> _REGION_BITS == region]
                self._mark(instruction, first + row, region, inside)

    def _mark(self, instruction: Instruction, wave: int, region: int, places: Indices) -> None:
        size = 1 << _REGION_BITS
        if region not in self._regions:
            self._regions[region] = np.zeros(size, np.int64)
        tags = self._regions[region]
        where = places & (size - 1)
        # workgroup from 1, then 16 bits of epoch and 5 of wave
        own = self._workgroup << 21
        tag = own | (self._epoch & 0xFFFF) << 5 | wave
        before = tags[where]
        racing = (before != 0) & (before != tag)
        if racing.any():
            same_group = before >> 21 == self._workgroup
            ordered = same_group & ((before >> 5 != tag >> 5) | (before & 31 == wave))
            racing &= ~ordered
        if racing.any():
            place = int(places[racing][0])
            other = int(before[racing][0])
            who = f"wave {other & 31}" + (
                "" if other >> 21 == self._workgroup else " of another workgroup"
            )
            self._log.add(
                "global-race",
                wave,
                instruction,
                f"writes byte {place:#x}, which {who} writes too, and nothing orders the two",
            )
        tags[where] = tag
