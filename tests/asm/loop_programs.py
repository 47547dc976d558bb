"""Decides what small loop programs the tests of the passes are tried on, and what such a program
means: an interpreter whose values are the histories by which they came about. It judges no pass."""

from __future__ import annotations

import random
from collections.abc import Iterator

from asm_overrides.passes.access import Atom, access
from asm_overrides.passes.flow import branch_label, used_atoms
from asm_overrides.program import M0, VCC, Builder, LoopProgram, Op, Value

Place = tuple[str, int]
Symbol = int


class Meaning:
    """Contents of halves of registers, LDS rings and memory as hashes of how they were made."""

    def __init__(self) -> None:
        self.halves: dict[tuple[Place, int], Symbol] = {}
        self.memory: dict[str, Symbol] = {}

    def read(self, place: Place) -> tuple[Symbol, ...]:
        return tuple(self.halves.get((place, half), hash((place, half))) for half in (0, 1))

    def inputs(self, op: Op, places: dict[Atom, Place]) -> tuple[object, ...]:
        """Everything that an operation takes."""
        touched = access(op)
        seen = [self.read(places.get(atom, atom)) for atom in sorted(used_atoms(touched))]
        rings = [self.memory.get(ring, 0) for ring in op.lds_reads]
        return (op.opcode, op.modifiers, str(op), *seen, *rings)

    def run(self, op: Op, places: dict[Atom, Place]) -> None:
        """Effect of one operation; `places` says where each dword of a value is kept."""
        touched = access(op)
        made = hash(self.inputs(op, places))
        halves = (0, 1) if touched.half is None else (touched.half,)
        for atom in touched.writes:
            for half in halves:
                self.halves[places.get(atom, atom), half] = hash((made, atom, half))
        for ring in op.lds_writes:
            fills = "lds" in op.modifiers.split()
            key = f"fill {ring}" if fills else ring
            self.memory[key] = hash((self.memory.get(key, 0), made))


def walk(ops: list[Op], dice: random.Random, limit: int = 400) -> Iterator[int]:
    """Indices of operations in the order of one random execution."""
    labels = {op.label: index for index, op in enumerate(ops) if op.label}
    index = 0
    while index < len(ops) and limit:
        limit -= 1
        yield index
        label = branch_label(ops[index])
        taken = label is not None and (ops[index].opcode == "s_branch" or dice.random() < 0.5)
        index = labels[label] if label is not None and taken else index + 1


class Maker:
    """Makes random programs; the same seed makes the same one."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.b = Builder(f"random {seed}")
        b = self.b
        self.lanes = [b.vector(f"lane{i}") for i in range(8)]
        self.quads = [b.vector(f"quad{i}", 4, align=2) for i in range(4)]
        self.codes = [b.vector(f"code{i}") for i in range(2)]
        self.scalars = [b.scalar(f"scalar{i}") for i in range(5)]
        self.masks = [b.scalar(f"mask{i}", 2) for i in range(2)]
        self.saved = b.scalar("saved")
        self.thread = b.vector("thread", fixed=0, read_only=True)
        self.descriptor = b.scalar("descriptor", 4, fixed=8, read_only=True)
        self.result = b.vector("result", 4, align=2, fixed=32)
        b.ring("k", 2, 1024, pieces=2)
        b.ring("v", 2, 1024)

    def prologue(self, stage: str = "setup") -> None:
        """Give everything a first content."""
        with self.b.stage(stage, "fixed"):
            self.b.op("s_mov_b32", self.saved, M0)
            for value in (*self.lanes, *self.codes):
                self._define(value)
            for value in self.quads:
                for dword in range(4):
                    self.b.op("v_mov_b32", value[dword], dword)
            for dword in range(4):
                self.b.op("v_mov_b32", self.result[dword], 0)
            for value in self.scalars:
                self.b.op("s_mov_b32", value, 5)
            for value in self.masks:
                self.b.op("s_mov_b64", value, 0)
            self.b.op("v_cmp_eq_u32", VCC, 0, self.lanes[0])
            self.b.op("s_cmp_eq_u32", self.scalars[0], 0)

    def _define(self, value: Value) -> None:
        self.b.op("v_mov_b32", value, self.thread)

    def vector(self) -> None:
        """One operation of the vector pipe."""
        b, dice = self.b, self.dice
        lane, other, third = (dice.choice(self.lanes) for _ in range(3))
        quad, quad2 = dice.choice(self.quads), dice.choice(self.quads)
        kind = dice.randrange(11)
        mask = dice.choice([*self.masks, VCC])
        half = dice.randrange(2)
        if kind <= 1:
            b.op("v_add_u32", lane, other, third)
        elif kind == 2:
            b.op("v_exp_f32", lane, other)
        elif kind == 3:
            b.op("v_cmp_gt_u32", mask, lane, other)
        elif kind == 4:
            b.op("v_cndmask_b32", lane, other, third, mask)
        elif kind == 5:
            select = "op_sel:[0,0,1]" if half else ""
            b.op("v_cvt_pk_fp8_f32", dice.choice(self.codes), lane, other, modifiers=select)
        elif kind == 6:
            b.op("v_add_u32", lane, dice.choice(self.codes), other)
        elif kind == 7:
            b.op("v_pk_add_f32", quad[2 * half : 2 * half + 2], quad2[0:2], quad2[2:4])
        elif kind == 8:
            b.op("v_readfirstlane_b32", dice.choice(self.scalars), lane)
        elif kind == 9:
            b.op("v_add_f32", lane, quad[dice.randrange(4)], dice.choice(self.scalars))
        else:
            b.op("v_mov_b32", quad[dice.randrange(4)], lane)

    def scalar(self) -> None:
        """One operation of the scalar pipe."""
        b, dice = self.b, self.dice
        first, second, third = (dice.choice(self.scalars) for _ in range(3))
        kind = dice.randrange(5)
        if kind == 0:
            b.op("s_add_u32", first, second, third)
        elif kind == 1:
            b.op("s_addc_u32", first, second, third)
        elif kind == 2:
            b.op("s_cmp_lt_i32", first, second)
        elif kind == 3:
            b.op("s_cselect_b32", first, second, third)
        else:
            b.op("s_mul_i32", first, second, third)

    def matrix(self) -> None:
        """One matrix operation, small enough that all sorts of overlap come up."""
        quads = [self.dice.choice(self.quads) for _ in range(4)]
        into = self.dice.choice([quads[0], self.result])
        factors = [quad for quad in quads[1:3] if quad is not into] or [self._other(into)]
        self.b.op("v_mfma_f32_16x16x32_bf16", into, factors[0], factors[-1], into)

    def _other(self, value: Value) -> Value:
        return next(quad for quad in self.quads if quad is not value)

    def read(self) -> None:
        """One LDS read."""
        b, dice = self.b, self.dice
        ring = dice.choice("kv")
        if dice.random() < 0.5:
            b.op("ds_read_b32", dice.choice(self.lanes), self.thread, lds_reads=[ring])
        else:
            quad, half = dice.choice(self.quads), 2 * dice.randrange(2)
            b.op("ds_read_b64", quad[half : half + 2], self.thread, lds_reads=[ring])

    def write(self) -> None:
        """One LDS write."""
        ring = self.dice.choice("kv")
        self.b.op("ds_write_b32", self.thread, self.dice.choice(self.lanes), lds_writes=[ring])

    def fill(self, ring: str = "v") -> None:
        """A whole tile on its way into a ring."""
        for piece in range(2 if ring == "k" else 1):
            self.b.op("s_mov_b32", M0, 1024 * piece)
            self.b.op(
                "buffer_load_dwordx4",
                self.thread,
                self.descriptor,
                0,
                modifiers="offen lds",
                lds_writes=[ring],
            )

    def load(self) -> None:
        """One register load from memory."""
        self.b.op(
            "buffer_load_dword", self.dice.choice(self.lanes), self.thread, self.descriptor, 0,
            modifiers="offen",
        )  # fmt: skip

    def some(self, count: int) -> None:
        """Several operations of any kind."""
        for _ in range(count):
            roll = self.dice.random()
            if roll < 0.5:
                self.vector()
            elif roll < 0.68:
                self.scalar()
            elif roll < 0.78:
                self.matrix()
            elif roll < 0.9:
                self.read()
            elif roll < 0.94:
                self.write()
            elif roll < 0.97:
                self.fill(self.dice.choice("kv"))
            else:
                self.load()

    def epilogue(self) -> None:
        """Gather everything in the result."""
        with self.b.stage("gather", "fixed"):
            for value in (*self.lanes, *self.codes, *self.quads):
                for dword in range(value.width):
                    self.b.op("v_add_u32", self.result[0], value[dword], self.result[0])
            for scalar in (*self.scalars, *self.masks):
                for dword in range(scalar.width):
                    self.b.op("v_add_u32", self.result[1], scalar[dword], self.result[1])
            self.b.op("v_cndmask_b32", self.result[2], 0, self.result[2], VCC)
            self.b.op("s_mov_b32", M0, self.saved)

    def finish(self) -> LoopProgram:
        return self.b.finish(["thread", "descriptor"], ["result"])


def straight(seed: int, kind: str = "vector", count: int = 30) -> LoopProgram:
    """One movable stage between a fixed prologue and a fixed epilogue."""
    maker = Maker(seed)
    maker.prologue()
    with maker.b.stage("body", kind):  # type: ignore[arg-type]
        maker.some(count)
    maker.epilogue()
    return maker.finish()


def looping(seed: int) -> LoopProgram:
    """A loop with a stage that may be skipped; rings are filled ahead and published."""
    maker = Maker(seed)
    b, dice = maker.b, maker.dice
    maker.prologue()
    with b.stage("fill", "fixed"):
        for ring in "kv":
            for _ in range(dice.randrange(3)):
                maker.fill(ring)
    loop, skip = b.new_label("loop"), b.new_label("skip")
    with b.stage("head", "fixed"):
        b.label(loop)
    with b.stage("first", dice.choice(["matrix", "vector"])):
        maker.some(dice.randrange(3, 14))
    with b.stage("publish", "fixed"):
        b.publish(**{ring: dice.randrange(3) for ring in dice.choice(["k", "v", "kv"])})
        b.op("s_barrier")
        b.op("s_cbranch_scc1", skip)
    with b.stage("second", "vector"):
        maker.some(dice.randrange(1, 8))
    with b.stage("skip", "fixed"):
        b.label(skip)
    with b.stage("third", dice.choice(["matrix", "vector"])):
        maker.some(dice.randrange(2, 12))
    with b.stage("again?", "fixed"):
        b.publish(k=dice.randrange(3), v=dice.randrange(3))
        b.op("s_barrier")
        b.op("s_cmp_lg_u32", maker.scalars[0], 0)
        b.op("s_cbranch_scc1", loop)
    maker.epilogue()
    return maker.finish()
