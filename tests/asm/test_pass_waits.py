"""Waits: where they are needed, as high as they may be, on all paths; judged by random walks."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from asm_overrides.emulator.waits import find_missing_waits, is_lds_load
from asm_overrides.isa.operands import WaitCounts
from asm_overrides.passes.allocate import Budget, allocate
from asm_overrides.passes.lines import Line, RegisterProgram, added_line
from asm_overrides.passes.waits import Boundary, insert_waits
from asm_overrides.program import M0, Builder, LoopProgram
from tests.asm.loop_programs import looping, walk

SMALL = Budget((range(1, 128),), (range(16, 96),))
INSIDE = Boundary(entry=False, exit=False)


def waited(b: Builder, boundary: Boundary = INSIDE) -> list[str]:
    """Texts behind the pass; labels as they are."""
    program = allocate(b.finish(["address", "base"], []), SMALL).assigned
    done = insert_waits(program, boundary)
    return [line.text or f"{line.op.label}:" for line in done.lines]


class Small:
    """A builder with what the programs below need."""

    def __init__(self, pieces: int = 1) -> None:
        self.b = Builder("waits")
        self.address = self.b.vector("address", fixed=0, read_only=True)
        self.base = self.b.scalar("base", 4, fixed=8, read_only=True)
        self.x = [self.b.vector(f"x{i}", fixed=1 + i) for i in range(4)]
        self.b.ring("k", 4, 1024, pieces)
        self.b.ring("v", 4, 1024)

    def read(self, index: int) -> None:
        self.b.op("ds_read_b32", self.x[index], self.address, lds_reads=["k"])

    def load(self, index: int) -> None:
        self.b.op("buffer_load_dword", self.x[index], self.address, self.base, 0, modifiers="offen")

    def fill(self, ring: str) -> None:
        self.b.op(
            "buffer_load_dwordx4", self.address, self.base, 0, modifiers="offen lds",
            lds_writes=[ring],
        )  # fmt: skip

    def use(self, index: int) -> None:
        self.b.op("v_add_u32", self.x[index], self.x[index], 1)

    def barrier(self) -> None:
        self.b.op("s_barrier")


FILL = "buffer_load_dwordx4 v0, s[8:11], 0 offen lds"


def test_each_use_waits_for_its_own_read_only() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        for index in range(3):
            s.read(index)
        for index in (0, 2, 1):
            s.use(index)
    assert waited(s.b) == [
        "ds_read_b32 v1, v0",
        "ds_read_b32 v2, v0",
        "ds_read_b32 v3, v0",
        "s_waitcnt lgkmcnt(2)",
        "v_add_u32 v1, v1, 1",
        "s_waitcnt lgkmcnt(0)",
        "v_add_u32 v3, v3, 1",
        "v_add_u32 v2, v2, 1",
    ]


def test_both_counters_are_waited_for_at_once() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.load(0)
        s.load(2)
        s.read(1)
        s.b.op("v_add_u32", s.x[3], s.x[0], s.x[1])
    assert waited(s.b)[-2:] == ["s_waitcnt vmcnt(1) lgkmcnt(0)", "v_add_u32 v4, v1, v2"]


def test_overwriting_what_a_read_is_going_to_write_waits() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.read(0)
        s.read(0)  # LDS answers in order
        s.b.op("v_mov_b32", s.x[0], 0)
        s.load(1)
        s.read(1)  # memory and LDS do not
    assert waited(s.b) == [
        "ds_read_b32 v1, v0",
        "ds_read_b32 v1, v0",
        "s_waitcnt lgkmcnt(0)",
        "v_mov_b32 v1, 0",
        "buffer_load_dword v2, v0, s[8:11], 0 offen",
        "s_waitcnt vmcnt(0)",
        "ds_read_b32 v2, v0",
    ]


def test_scalar_loads_come_in_any_order() -> None:
    s = Small()
    words = [s.b.scalar(f"word{i}", fixed=40 + i) for i in range(2)]
    with s.b.stage("body", "fixed"):
        s.b.op("s_load_dword", words[0], s.base[0:2], 0)
        s.read(0)
        s.use(0)
        s.b.op("s_add_u32", words[0], words[0], 1)
    assert waited(s.b)[2:] == [
        "s_waitcnt lgkmcnt(0)",
        "v_add_u32 v1, v1, 1",
        "s_add_u32 s40, s40, 1",
    ]


def test_a_wait_on_every_path_is_not_repeated_and_one_on_some_is() -> None:
    s = Small()
    skip = s.b.new_label("skip")
    with s.b.stage("body", "fixed"):
        s.read(0)
        s.read(1)
        s.b.op("s_cmp_eq_u32", s.base[0], 0)
        s.b.op("s_cbranch_scc1", skip)
        s.use(0)
        s.b.label(skip)
        s.use(0)
        s.use(1)
        s.use(0)
    assert waited(s.b)[4:] == [
        "s_waitcnt lgkmcnt(1)",
        "v_add_u32 v1, v1, 1",
        "{L}_skip_1:",
        "s_waitcnt lgkmcnt(1)",
        "v_add_u32 v1, v1, 1",
        "s_waitcnt lgkmcnt(0)",
        "v_add_u32 v2, v2, 1",
        "v_add_u32 v1, v1, 1",
    ]


def test_a_read_of_the_last_iteration_is_awaited_in_the_next() -> None:
    s = Small()
    loop = s.b.new_label("loop")
    with s.b.stage("body", "fixed"):
        s.read(0)
        s.b.label(loop)
        s.use(0)
        s.read(0)
        s.read(1)
        s.b.op("s_cmp_eq_u32", s.base[0], 0)
        s.b.op("s_cbranch_scc1", loop)
    assert waited(s.b) == [
        "ds_read_b32 v1, v0",
        "{L}_loop_1:",
        "s_waitcnt lgkmcnt(0)",  # on the way in nothing was issued behind it
        "v_add_u32 v1, v1, 1",
        "ds_read_b32 v1, v0",
        "ds_read_b32 v2, v0",
        "s_cmp_eq_u32 s8, 0",
        "s_cbranch_scc1 {L}_loop_1",
    ]


def test_publish_counts_what_was_issued_behind_the_tile() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        for ring in "kvkvk":
            s.fill(ring)
        s.b.publish(k=1)
        s.barrier()
        s.b.publish(k=1, v=1)
        s.barrier()
        s.b.publish(v=0)
        s.barrier()
        s.b.publish(k=2)
        s.barrier()
    assert waited(s.b)[5:] == [
        "s_waitcnt vmcnt(2)",
        "s_barrier",
        "s_barrier",
        "s_waitcnt vmcnt(1)",
        "s_barrier",
        "s_barrier",
    ]


def test_a_tile_begun_counts_as_the_latest() -> None:
    s = Small(pieces=2)
    with s.b.stage("body", "fixed"):
        for _ in range(5):
            s.fill("k")  # two tiles and a half
        s.b.publish(k=2)
        s.barrier()
        s.b.publish(k=1)
        s.barrier()
        s.fill("k")
        s.b.publish(k=1)
        s.barrier()
    assert waited(s.b)[5:] == [
        "s_waitcnt vmcnt(3)",
        "s_barrier",
        "s_waitcnt vmcnt(1)",
        "s_barrier",
        FILL,
        "s_barrier",
    ]


def test_publish_in_a_loop_takes_the_worst_path() -> None:
    s = Small()
    loop, skip = s.b.new_label("loop"), s.b.new_label("skip")
    with s.b.stage("body", "fixed"):
        s.fill("k")
        s.b.label(loop)
        s.fill("k")
        s.b.op("s_cbranch_vccz", skip)
        s.fill("v")
        s.b.label(skip)
        s.b.publish(k=1)
        s.barrier()
        s.b.op("s_cbranch_vccz", loop)
    assert "s_waitcnt vmcnt(1)" in waited(s.b)
    assert sum("waitcnt" in text for text in waited(s.b)) == 1


def test_release_waits_for_the_reads_of_a_ring() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.read(0)
        s.b.op("ds_read_b32", s.x[1], s.address, lds_reads=["v"])
        s.b.op("release", lds_reads=["k"])
        s.barrier()
        s.b.op("release", lds_reads=["k"])
        s.barrier()
    assert waited(s.b)[2:] == ["s_waitcnt lgkmcnt(1)", "s_barrier", "s_barrier"]


def test_the_boundary() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.read(0)
        s.fill("k")
        s.b.op("buffer_store_dword", s.address, s.address, s.base, 0, modifiers="offen")
    assert waited(s.b, Boundary()) == [
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "s_barrier",
        "ds_read_b32 v1, v0",
        FILL,
        "buffer_store_dword v0, v0, s[8:11], 0 offen",
        "s_waitcnt vmcnt(1) lgkmcnt(0)",  # the store may stay in flight
        "s_barrier",
    ]
    assert waited(s.b, INSIDE)[-1].startswith("buffer_store")


def test_a_program_without_lds_needs_no_barrier() -> None:
    b = Builder("no LDS")
    x = b.vector("x", fixed=3)
    with b.stage("body", "fixed"):
        b.op("v_mov_b32", x, 0)
    done = insert_waits(allocate(b.finish([], ["x"])).assigned)
    assert [line.text for line in done.lines] == [
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "v_mov_b32 v3, 0",
    ]


def rejected(b: Builder, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        waited(b)


def test_needs_are_checked() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("s_waitcnt", "vmcnt(0)")
    rejected(s.b, "the recipe holds s_waitcnt vmcnt(0)")
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.publish(w=1)
    rejected(s.b, "names the ring 'w', there are ['k', 'v']")
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.publish(k=-1)
    rejected(s.b, "publish wants generations >= 0")
    s = Small(pieces=2)
    skip = s.b.new_label("skip")
    with s.b.stage("body", "fixed"):
        s.b.op("s_cbranch_vccz", skip)
        s.fill("k")
        s.b.label(skip)
        s.barrier()
    rejected(s.b, "pieces of a tile of ring 'k' issued")


class Hardware:
    """What is really in flight: queues, emptied by waits only."""

    def __init__(self, program: LoopProgram) -> None:
        self.pieces = {ring.name: ring.pieces for ring in program.rings}
        self.queues: dict[str, list[Line]] = {"vmcnt": [], "lgkmcnt": []}
        self.fills: dict[str, list[Line]] = {name: [] for name in self.pieces}
        self.issued = dict.fromkeys(self.pieces, 0)
        self.landed: set[int] = set()

    def wait(self, line: Line) -> None:
        assert line.instruction is not None
        counts = line.instruction.operands[0]
        assert isinstance(counts, WaitCounts)
        for name, count in (("vmcnt", counts.vmcnt), ("lgkmcnt", counts.lgkmcnt)):
            if count is not None and len(self.queues[name]) > count:
                queue = self.queues[name]
                self.queues[name] = queue[len(queue) - count :] if count else []

    def problem(self, line: Line) -> str:
        """What a line does too early, in words."""
        if line.op.opcode == "publish":
            for ring, generations in line.op.publishes:
                pieces = self.pieces[ring]
                tiles = -(-self.issued[ring] // pieces)
                last = max(0, tiles - generations) * pieces
                behind = [each for each in self.queues["vmcnt"] if ring in each.op.lds_writes]
                if len(behind) > self.issued[ring] - last:
                    return f"{ring}: {len(behind)} in flight"
            return ""
        instruction = line.instruction
        assert instruction is not None
        for name, queue in self.queues.items():
            for each in queue:
                load = each.instruction
                assert load is not None
                if load.spec.access == "store" or is_lds_load(load):
                    continue
                same = instruction.spec.counters == load.spec.counters == (name,)
                in_order = same and instruction.spec.port == load.spec.port
                touched = instruction.reads if in_order else instruction.reads | instruction.writes
                if load.writes & touched:
                    return f"{line.text} before {each.text}"
        return ""

    def issue(self, line: Line) -> None:
        instruction = line.instruction
        if instruction is None:
            return
        for counter in instruction.spec.counters:
            self.queues[counter].append(line)
        if is_lds_load(instruction):
            for ring in line.op.lds_writes:
                self.issued[ring] += 1


def with_waits(before: RegisterProgram, after: RegisterProgram) -> list[tuple[Line | None, Line]]:
    """For each line of the program before the pass: the wait in front of it, if any."""
    rest = iter(after.lines)
    paired: list[tuple[Line | None, Line]] = []
    pending: Line | None = None
    for line in before.lines:
        wait = pending or next(rest, None)
        pending = None
        if wait is not None and not wait.added_by:
            pending, wait = wait, None
        if line.op.opcode != "publish":
            following = pending or next(rest)
            assert following.op is line.op
            pending = None
        paired.append((wait, line))
    return paired


def too_early(
    program: RegisterProgram, paired: list[tuple[Line | None, Line]], paths: int
) -> Iterator[str]:
    """What random walks find."""
    ops = [line.op for line in program.lines]
    for path in range(paths):
        hardware = Hardware(program.program)
        for index in walk(ops, random.Random(path)):
            wait, line = paired[index]
            if wait is not None:
                hardware.wait(wait)
            if line.op.label:
                continue
            if problem := hardware.problem(line):
                yield problem
                break
            hardware.issue(line)


@pytest.mark.parametrize("seed", range(30))
def test_random_walks_find_nothing_too_early(seed: int) -> None:
    before = allocate(looping(seed), SMALL).assigned
    paired = with_waits(before, insert_waits(before, INSIDE))
    assert any(wait is not None for wait, _ in paired)
    assert list(too_early(before, paired, 20)) == []


@pytest.mark.parametrize("seed", range(12))
def test_every_wait_is_needed(seed: int) -> None:
    """Without any one of them some walk is too early: none is redundant."""
    before = allocate(looping(seed), SMALL).assigned
    paired = with_waits(before, insert_waits(before, INSIDE))
    for index, (wait, line) in enumerate(paired):
        if wait is not None:
            without = [*paired[:index], (None, line), *paired[index + 1 :]]
            assert next(too_early(before, without, 300), ""), f"{wait.text} before {line.op}"


@pytest.mark.parametrize("seed", range(12))
def test_every_count_is_as_high_as_it_may_be(seed: int) -> None:
    before = allocate(looping(seed), SMALL).assigned
    paired = with_waits(before, insert_waits(before, INSIDE))
    for index, (wait, line) in enumerate(paired):
        for counter in ("vmcnt", "lgkmcnt"):
            higher = _higher(wait, counter)
            if higher is not None:
                looser = [*paired[:index], (higher, line), *paired[index + 1 :]]
                assert next(too_early(before, looser, 300), ""), f"{higher.text} before {line.op}"


def _higher(wait: Line | None, counter: str) -> Line | None:
    if wait is None or counter not in wait.text:
        return None
    text = re.sub(rf"{counter}\((\d+)\)", lambda m: f"{counter}({int(m[1]) + 1})", wait.text)
    return added_line(text, wait.stage, "test", "")


@pytest.mark.parametrize("seed", range(30))
def test_the_checker_of_register_waits_agrees(seed: int) -> None:
    done = insert_waits(allocate(looping(seed), SMALL).assigned)
    instructions, labels, _ = done.instructions()
    assert find_missing_waits(instructions, labels) == []


def test_m0_and_scalars_are_no_memory() -> None:
    s = Small()
    with s.b.stage("body", "fixed"):
        s.b.op("s_mov_b32", M0, 0)
        s.fill("k")
        s.b.op("s_mov_b32", M0, 4)
    assert not any("waitcnt" in text for text in waited(s.b))
