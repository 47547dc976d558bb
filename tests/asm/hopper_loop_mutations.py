"""Decides which mistakes are planted into the generated Hopper loop, and how one is judged."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from asm_overrides.recipes.attention_sm90 import Parameters
from tests.asm.hopper_loop_contract import ROWS, WARP_ROWS, Rows
from tests.asm.hopper_loop_runs import Run, Task, text_of
from tests.asm.hopper_loop_tasks import (
    by_row,
    far_from_zero,
    grown_alone,
    made,
    maxima_everywhere,
    sums_about_flat,
    sums_and_growth,
    thresholds,
    with_rest,
    with_small,
)

_OTHERS = {"k_slot": "v_slot", "k_phase": "v_phase"}
_OTHERS |= {other: one for one, other in _OTHERS.items()}


@dataclass(frozen=True)
class Mutation:
    """A line of a text, counted from 1, and what stands there instead; nothing if empty."""

    kind: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        pairs = enumerate(zip(self.before, self.after, strict=False))
        at = next((index for index, (one, other) in pairs if one != other), 0)
        at = at if len(self.before) > 100 else 0
        name = f"{self.before.split(' ')[0]} ..." if at > 50 else ""
        shown = slice(max(0, at - 12) if name else 0, at + 100)
        return f"{self.kind} {self.line}: {name}{self.before[shown]} -> {self.after[shown]}"

    def apply(self, text: str) -> str:
        lines = text.split("\n")
        assert lines[self.line - 1] == self.before
        lines[self.line - 1] = self.after
        return "\n".join(lines)


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Lines with an instruction."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith(";") and not line.startswith("."):
            yield number, line


def removals(text: str, opcodes: Sequence[str] = ("",)) -> list[Mutation]:
    """Each instruction with one of these beginnings of a name, left out."""
    return [
        Mutation("removed", number, line, "")
        for number, line in statements(text)
        if re.sub(r"^@\S+ ", "", line).startswith(tuple(opcodes))
    ]


def weaker_waits(text: str) -> list[Mutation]:
    return [
        Mutation("weaker", number, line, f"wgmma.wait_group.sync.aligned {int(found[1]) + 1};")
        for number, line in statements(text)
        if (found := re.fullmatch(r"wgmma\.wait_group\.sync\.aligned (\d);", line))
    ]


def guards(text: str) -> list[Mutation]:
    """Each predicate turned round, and left out."""
    made = []
    for number, line in statements(text):
        if found := re.fullmatch(r"@(!?)(\S+) (.*)", line):
            turned = f"@{'' if found[1] else '!'}{found[2]} {found[3]}"
            made.append(Mutation("guard turned", number, line, turned))
            made.append(Mutation("guard removed", number, line, found[3]))
    return made


def other_places(text: str) -> list[Mutation]:
    """K's slot and phase where V's stand, and the other way round."""
    made = []
    for number, line in statements(text):
        for name, other in _OTHERS.items():
            if re.search(rf"\b{name}\b", line):
                changed = re.sub(rf"\b{name}\b", other, line)
                made.append(Mutation("other place", number, line, changed))
    return made


def siblings(text: str) -> list[Mutation]:
    """One source or target, a numbered register, replaced by its neighbour."""
    made = []
    for number, line in statements(text):
        for found in re.finditer(r"\b([a-zA-Z_]\w*?)(\d+)(?=[,;}])", line):
            if found[0].startswith("0"):
                continue
            neighbour = f"{found[1]}{int(found[2]) ^ 1}"
            changed = line[: found.start()] + neighbour + line[found.end() :]
            made.append(Mutation("neighbour", number, line, changed))
    return made


def swapped_sources(text: str) -> list[Mutation]:
    """The first two sources of an instruction in each other's place, where that differs."""
    alike = r"(add|mul|max|min|and|or|xor|fma|mad|shfl|vote|mbarrier)\.|setp\.(eq|ne)"
    made = []
    for number, line in statements(text):
        found = re.fullmatch(r"((?:@\S+ )?[a-z]\S* [^,{]+, )([^,{]+), ([^,{]+)((?:, .*)?;)", line)
        if found and found[2] != found[3] and not re.match(rf"(@\S+ )?({alike})", line):
            changed = f"{found[1]}{found[3]}, {found[2]}{found[4]}"
            made.append(Mutation("sources swapped", number, line, changed))
    return made


def constants(text: str) -> list[Mutation]:
    """A constant with its lowest bit changed; of a float32 that of its exponent, of 0 all."""
    made = []
    for number, line in statements(text):
        if line.startswith(("wgmma.mma", "vote", "shfl")):
            continue
        for found in re.finditer(r"(?<=[ ])(0f[0-9A-F]{8}|0x[0-9a-f]+|\d+)(?=[,;])", line):
            if found[0].startswith("0f"):
                bits = int(found[0][2:], 16)
                other = f"0f{bits ^ 1 << 23 if bits else 0x3F800000:08X}"
            else:
                other = hex(int(found[0], 0) ^ 1)
            changed = line[: found.start()] + other + line[found.end() :]
            made.append(Mutation("constant", number, line, changed))
    return made


ORDERING = ("wgmma.fence", "wgmma.commit", "wgmma.wait", "mbarrier.", "bra")


def ordering(text: str) -> list[Mutation]:
    """All mistakes with what orders: waits, fences, barriers, branches, places."""
    return [*removals(text, ORDERING), *weaker_waits(text), *guards(text), *other_places(text)]


def arithmetic(text: str) -> list[Mutation]:
    """All mistakes with what computes."""
    return [*removals(text), *siblings(text), *swapped_sources(text), *constants(text)]


def sample(mutations: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Some of them, each kind of mistake and of instruction about as often."""
    chosen: list[Mutation] = []
    groups: dict[tuple[str, str], list[Mutation]] = {}
    for each in mutations:
        opcode = re.sub(r"^@\S+ ", "", each.before).split(" ")[0]
        groups.setdefault((each.kind, opcode), []).append(each)
    generator = random.Random(seed)
    keys = sorted(groups)
    generator.shuffle(keys)
    while len(chosen) < min(count, len(mutations)):
        for key in keys:
            if groups[key] and len(chosen) < count:
                chosen.append(groups[key].pop(generator.randrange(len(groups[key]))))
    return chosen


def _parted() -> Task:
    """Rows of two warps grow by about an octave a block, of the others only one row does."""
    task = made([0.0, 0.9, 1.8, 0.2, 2.6, 3.2], 0.5, seed=3)
    q = task.q.float()
    never = [r for r in range(ROWS) if r // WARP_ROWS % 2 and r not in (18, 59)]
    q[never] *= -4
    return replace(task, q=q.to(task.q.dtype))


@cache
def tasks(parameters: Parameters) -> tuple[tuple[Task, list[Rows]], ...]:
    """What a mistake must show on: growth of each kind, rings that wrap, late tiles, few blocks."""
    far = [200, 202.5, 200, 205, 205.2, 209]
    whole = (
        replace(by_row(made([0.0, 1.0, 1.9], 0.7)), before=2),  # finds most
        replace(_parted(), base=1, looks=(2, 0, 9, 1)),
        replace(with_small(made([0.4 * n for n in range(10)], 0.7)), base=2, looks=(6,)),
        replace(by_row(made(far, 3, unit=0.5, seed=2)), looks=(3, 0)),
        made([0.0], 0.7),
        far_from_zero(),
        by_row(made([100.0, 60.0, 50.0], 3, unit=0.5)),
    )
    about_flat = sums_about_flat()
    exactly = (
        maxima_everywhere(), about_flat, replace(about_flat, before=2), grown_alone(), thresholds(),
        sums_and_growth(range(18, 26), range(5, 13)), sums_and_growth(range(19, 27), range(5, 13)),
    )  # fmt: skip
    fitted = [*whole, *exactly]
    if parameters.headdim > 128:
        fitted = [*map(with_rest, whole), *(with_rest(task, q_size=0.0) for task in exactly)]
    return tuple((task, task.states(parameters.p_mode)) for task in fitted)


def found(parameters: Parameters, mutation: Mutation) -> str:
    """How the mistake shows: the finding, or what differs; "" if it does not."""
    text = mutation.apply(text_of(parameters))
    for task, states in tasks(parameters):
        try:
            Run(parameters, task, text, states).check()
        except AssertionError as error:
            return str(error) or "an assertion"
    return ""
