"""Decides how warps run a text: one after another, each until it meets the others or must wait.

Warps may part at branches, lanes may not. Where a text uses matrix products of a warpgroup, its
four warps meet at each of their instructions. There is no timing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.asm.ptx.barriers import Barriers
from tests.asm.ptx.fragments import left, right, to_result
from tests.asm.ptx.operations import OPERATIONS, WINDOW, Operation, Values, e4m3
from tests.asm.ptx.program import DTYPES, Finding, Program, Statement, kept_as, names_in
from tests.asm.ptx.warpgroup import WARPS, Tiles, Warpgroup

LANES = 32
_ALL = "0xffffffff"
_LIMIT = 5_000  # instructions of a warp from one meeting to the next
_PATIENCE = 200  # turns in which no warp gets on
_RUNS, _MEETS, _WAITS, _ENDED = range(4)


class Threads:
    """Threads that run a text. registers: name -> values (count,) in the dtype of their bits.

    memory: global, bytes. tiles, barriers: of shared memory. `executed`: how often each statement
    was, counted by warp.
    """

    def __init__(
        self,
        text: str,
        count: int,
        registers: Mapping[str, Values],
        *,
        memory: Values | None = None,
        tiles: Tiles | None = None,
        barriers: Barriers | None = None,
    ) -> None:
        self.program = Program.read(text)
        self.memory, self.barriers = memory, barriers or Barriers()
        given = {**registers, "%tid.x": np.arange(count, dtype=np.uint32)}
        given["%laneid"] = given["%tid.x"] % np.uint32(LANES)
        given["%cluster_ctarank"] = np.zeros(count, np.uint32)  # the other one has 1
        self.kinds = {**self.program.kinds, **{n: v.dtype.type for n, v in given.items()}}
        self.warps = [
            {name: values[first : first + LANES].copy() for name, values in given.items()}
            for first in range(0, count, LANES)
        ]
        self.warpgroup = Warpgroup(tiles, set(given)) if tiles is not None else None
        assert self.warpgroup is None or len(self.warps) == WARPS
        self.executed: Counter[int] = Counter()
        self._at = [0] * len(self.warps)
        self._steps = [self._step(statement) for statement in self.program.statements]

    def register(self, name: str) -> Values:
        """A register of all threads."""
        return np.concatenate([warp[name] for warp in self.warps])

    def count(self, part: str) -> int:
        """How often statements that contain `part` were executed, by all warps together."""
        statements = enumerate(self.program.statements)
        return sum(self.executed[index] for index, each in statements if part in str(each))

    def run(self) -> None:
        """To the end of the text, by all warps.

        Raises Finding where the text breaks a rule.
        """
        stuck = 0
        with np.errstate(all="ignore"):
            while True:
                before = list(self._at)
                states = [self._turn(warp) for warp in range(len(self.warps))]
                if all(state == _ENDED for state in states):
                    break
                if _WAITS not in states:
                    self._meet(states)
                stuck = stuck + 1 if before == self._at else 0
                if stuck > _PATIENCE:
                    waiting = self.program.statements[self._at[states.index(_WAITS)]]
                    raise Finding(f"{waiting}: waits for ever")
        if self.warpgroup is not None and (left_over := list(self.warpgroup.under_way())):
            raise Finding(f"{left_over[0].statement}: under way at the end")

    def _meet(self, states: Sequence[int]) -> None:
        if len(set(self._at)) != 1 or set(states) != {_MEETS}:
            places = [self.program.statements[at : at + 1] for at in self._at]
            raise Finding(f"warps of a warpgroup part: {[str(*each) for each in places]}")
        assert self.warpgroup is not None
        index = self._at[0]
        self.warpgroup.execute(self.program.statements[index], self.warps)
        self.executed[index] += len(self.warps)
        self._at = [index + 1] * len(self.warps)

    def _turn(self, warp: int) -> int:
        statements = self.program.statements
        for _ in range(_LIMIT):
            index = self._at[warp]
            if index == len(statements):
                return _ENDED
            statement = statements[index]
            if statement.name.startswith("wgmma."):
                return _MEETS
            if self.warpgroup is not None:
                self.warpgroup.ordinary(statement)
            self.executed[index] += 1
            try:
                target = self._steps[index](warp)
            except ValueError as error:
                raise Finding(f"{statement}: {error}") from error
            self._at[warp] = index + 1 if target is None else target
            if target == index + 1:  # a look in vain
                return _WAITS
        raise Finding(f"{statements[self._at[warp]]}: the text does not end")

    # how statements become steps: warp -> index of the next statement, None for the one behind

    def _step(self, statement: Statement) -> Callable[[int], int | None]:
        name = statement.name
        if name in ("bra", "bra.uni"):
            return self._branch(statement)
        if name.startswith("mbarrier."):
            return self._barrier(statement)
        if name.startswith("wgmma."):
            return lambda warp: None
        if name == "vote.sync.any.pred":
            return self._vote(statement)
        if name == "shfl.sync.bfly.b32":
            return self._shuffle(statement)
        if name == "ld.global.v4.b32":
            return self._load(statement)
        if name.startswith("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3"):
            return self._multiply(statement)
        if name == "mov.b32" and statement.operands[0].startswith("{"):
            return self._unpack(statement)
        if name == "mov.b64" and statement.operands[1].startswith("{"):
            return self._pack(statement)
        return self._ordinary(statement)

    def _pack(self, statement: Statement) -> Callable[[int], int | None]:
        assert not statement.guard, str(statement)
        target = statement.operands[0]
        reads = [self._reader(name, "b32") for name in names_in(statement.operands[1])]
        self._check(target, "b64")

        def step(warp: int) -> None:
            words = np.stack([read(self.warps[warp]) for read in reads], -1)
            self.warps[warp][target] = words.view(np.uint64)[:, 0]

        return step

    def _ordinary(self, statement: Statement) -> Callable[[int], int | None]:
        assert statement.name in OPERATIONS, f"{statement}: not written down here"
        operation: Operation = OPERATIONS[statement.name]
        target, *texts = statement.operands
        assert len(texts) == len(operation.inputs), str(statement)
        reads = [
            self._reader(text, kind) for text, kind in zip(texts, operation.inputs, strict=True)
        ]
        active = self._guard(statement)
        self._check(target, operation.result)
        kept = kept_as(operation.result)

        def step(warp: int) -> None:
            registers = self.warps[warp]
            mask = active(registers)
            if mask is not None and not mask.any():
                return
            value = operation.compute(*[read(registers) for read in reads]).view(kept)
            if mask is not None and not mask.all():
                value = np.where(mask, value, _value(registers, target))
            registers[target] = value

        return step

    def _check(self, name: str, kind: str) -> None:
        if name not in self.kinds:
            raise Finding(f"{name} is not declared")
        if np.dtype(self.kinds[name]) != np.dtype(kept_as(kind)):
            raise Finding(f"{name} is {np.dtype(self.kinds[name])}, used as {kind}")

    def _reader(self, text: str, kind: str) -> Callable[[Mapping[str, Values]], Values]:
        dtype = np.dtype(DTYPES[kind])
        if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
            constant = np.full(LANES, int(text[2:], 16), np.uint32).view(dtype)
        elif re.match(r"-?\d", text):
            bits = int(text, 0) % (1 << 8 * dtype.itemsize)
            constant = np.full(LANES, bits, kept_as(kind)).view(dtype)
        else:
            self._check(text, kind)
            return lambda registers: _value(registers, text).view(dtype)
        return lambda registers: constant

    def _guard(self, statement: Statement) -> Callable[[Mapping[str, Values]], Values | None]:
        name = statement.guard.lstrip("!")
        if not name:
            return lambda registers: None
        self._check(name, "pred")
        inverted = statement.guard.startswith("!")
        return lambda registers: _value(registers, name) ^ inverted

    def _branch(self, statement: Statement) -> Callable[[int], int | None]:
        active = self._guard(statement)
        target = self.program.labels[statement.operands[0]]

        def step(warp: int) -> int | None:
            mask = active(self.warps[warp])
            if mask is not None and mask.any() != mask.all():
                raise ValueError("lanes part")
            return target if mask is None or mask.all() else None

        return step

    def _barrier(self, statement: Statement) -> Callable[[int], int | None]:
        active = self._guard(statement)
        target, address, *rest = statement.operands
        where = self._reader(address.strip("[]"), "b32")
        if statement.name.startswith("mbarrier.arrive.shared::"):
            assert target == "_" and not rest, str(statement)
            is_there = statement.name == "mbarrier.arrive.shared::cluster.b64"
            assert is_there or statement.name == "mbarrier.arrive.shared::cta.b64", str(statement)

            def arrive(warp: int) -> None:
                mask = active(self.warps[warp])
                lanes = LANES if mask is None else int(mask.sum())
                if not lanes:
                    return
                rank, address = divmod(_same(where(self.warps[warp])), 1 << int(WINDOW))
                if rank != is_there:
                    raise ValueError(f"the barrier is workgroup {rank}'s")
                if not is_there:
                    self.barriers.arrive(address, warp, lanes)
                for _ in range(lanes if is_there else 0):
                    self.barriers.arriving_there(address, warp)

            return arrive
        kind = statement.name.removeprefix("mbarrier.")
        accepted = ("test_wait.parity.shared::cta.b64", "try_wait.parity.shared::cta.b64")
        assert kind in accepted and not statement.guard, str(statement)
        parity = self._reader(rest[0], "b32")
        self._check(target, "pred")
        index = self.program.statements.index(statement)

        def look(warp: int) -> int | None:
            registers = self.warps[warp]
            answer = self.barriers.look(_same(where(registers)), _same(parity(registers)), warp)
            registers[target] = np.full(LANES, answer)
            return None if answer or kind.startswith("test") else index + 1

        return look

    def _vote(self, statement: Statement) -> Callable[[int], int | None]:
        target, source, members = statement.operands
        assert members == _ALL and not statement.guard, str(statement)
        read = self._reader(source, "pred")
        self._check(target, "pred")

        def step(warp: int) -> None:
            self.warps[warp][target] = np.full(LANES, read(self.warps[warp]).any())

        return step

    def _shuffle(self, statement: Statement) -> Callable[[int], int | None]:
        target, source, distance, clamp, members = statement.operands
        assert (clamp, members) == ("0x1f", _ALL) and not statement.guard, str(statement)
        read = self._reader(source, "b32")
        self._check(target, "b32")
        lanes = np.arange(LANES) ^ int(distance, 0)

        def step(warp: int) -> None:
            self.warps[warp][target] = read(self.warps[warp])[lanes]

        return step

    def _unpack(self, statement: Statement) -> Callable[[int], int | None]:
        assert not statement.guard, str(statement)
        names = names_in(statement.operands[0])
        read = self._reader(statement.operands[1], "b32")
        for name in names:
            self._check(name, "b16")

        def step(warp: int) -> None:
            halves = read(self.warps[warp]).view(np.uint16).reshape(LANES, 2)
            for index, name in enumerate(names):
                self.warps[warp][name] = halves[:, index].copy()

        return step

    def _load(self, statement: Statement) -> Callable[[int], int | None]:
        assert not statement.guard and self.memory is not None, str(statement)
        memory = self.memory
        base, _, offset = statement.operands[1].strip("[]").partition("+")
        read, names = self._reader(base.strip(), "s64"), names_in(statement.operands[0])
        for name in names:
            self._check(name, "b32")

        def step(warp: int) -> None:
            first = read(self.warps[warp]) + int(offset or 0)
            if (first % 16).any():
                raise ValueError("a load that is not aligned")
            words = memory[first[:, None] + np.arange(4 * len(names))].view(np.uint32)
            for index, name in enumerate(names):
                self.warps[warp][name] = words[:, index].copy()

        return step

    def _multiply(self, statement: Statement) -> Callable[[int], int | None]:
        assert not statement.guard, str(statement)
        d, *sources = (names_in(operand) for operand in statement.operands)
        a, b, c = ([self._reader(name, "b32") for name in names] for names in sources)

        def step(warp: int) -> None:
            registers = self.warps[warp]
            words = np.array([read(registers) for read in a])[:, None]
            product = e4m3(left(words)) @ right(np.array([read(registers) for read in b]))
            for name, read, value in zip(d, c, to_result(product), strict=True):
                total = value[0] + read(registers).view(np.float32)
                registers[name] = total.astype(np.float32).view(np.uint32)

        return step


def _value(registers: Mapping[str, Values], name: str) -> Values:
    if name not in registers:
        raise ValueError(f"{name} is read before it is written")
    return registers[name]


def _same(values: Values) -> int:
    if (values != values[0]).any():
        raise ValueError("lanes differ")
    return int(values[0])
