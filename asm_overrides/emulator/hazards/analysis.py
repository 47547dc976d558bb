"""Decides where a program leaves too few wait states; does not know the numbers (see rules.py).

Independent of execution: every path of the control-flow graph counts, and the shortest decides.
A register's latest writer of the rule's class hides earlier ones, as in the recogniser.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asm_overrides.emulator.flow import ControlFlow, control_flow
from asm_overrides.emulator.hazards.clauses import (
    CLAUSE,
    breaks_clause,
    clause_hazards,
    clause_kind,
)
from asm_overrides.emulator.hazards.facts import Facts
from asm_overrides.emulator.hazards.rules import RULES, Rule
from asm_overrides.isa.instruction import Instruction
from asm_overrides.isa.registers import register_name

_BY_PRODUCER: dict[str, tuple[Rule, ...]] = defaultdict(tuple)
for _rule in RULES:
    _BY_PRODUCER[_rule.producer] += (_rule,)


@dataclass(frozen=True)
class Hazard:
    """Two instructions that stand too close.

    Attributes:
        producer, consumer: indices into the program.
        rule: the rule that demands the distance.
        required, present: wait states between the two.
        registers: the registers that both touch (empty for rules without any).
    """

    producer: int
    consumer: int
    rule: Rule
    required: int
    present: int
    registers: frozenset[int]

    def describe(self, instructions: Sequence[Instruction]) -> str:
        """One sentence naming both lines, the wait states and the reason."""
        first = instructions[self.producer]
        names = ", ".join(register_name(register) for register in sorted(self.registers)[:4])
        return (
            f"needs {self.required} wait states after line {first.line} `{first.text}`"
            f"{f' ({names})' if names else ''}, has {self.present}: {self.rule.why}"
        )


def required_wait_states(
    producer: Instruction, consumer: Instruction, *, xnack: bool = True
) -> int:
    """Wait states that must lie between two instructions, 0 if none or if they are independent.

    Args:
        xnack: whether the target may replay memory clauses (see clauses.py).
    """
    first, second = Facts(producer), Facts(consumer)
    needed = max(
        (
            rule.needed(first, second)
            for rule in _rules_from(first)
            if rule.consumer in second.classes
            and first.registers(rule.made) & second.registers(rule.used)
        ),
        default=0,
    )
    kind = clause_kind(producer)
    if xnack and kind and kind == clause_kind(consumer) and breaks_clause([first], second) == 0:
        return max(needed, 1)
    return needed


def find_hazards(
    instructions: Sequence[Instruction],
    labels: Mapping[str, int],
    entry: int = 0,
    *,
    strict: bool = False,
    xnack: bool = True,
) -> list[Hazard]:
    """All pairs that stand too close on some path from the entry, in program order.

    Args:
        labels: name -> index of the instruction behind the label.
        strict: also report pairs at a distance that LLVM does not look at (see rules.Rule.window);
            compiled code contains such pairs, generated code should not.
        xnack: whether the target may replay memory clauses (see clauses.py).
    """
    facts = [Facts(instruction) for instruction in instructions]
    flow = control_flow(instructions, labels, entry)
    worst: dict[tuple[int, int], Hazard] = {}
    found: list[Hazard] = []
    for index, producer in enumerate(facts):
        if flow.reachable[index]:
            found += _too_close(index, producer, facts, flow, strict)
    if xnack:
        for earlier, later in clause_hazards(facts):
            if flow.reachable[later]:
                found.append(Hazard(earlier, later, CLAUSE, 1, 0, frozenset()))
    for hazard in found:
        key = (hazard.producer, hazard.consumer)
        known = worst.get(key)
        lack = hazard.required - hazard.present
        if known is None or lack > known.required - known.present:
            worst[key] = hazard
    return sorted(worst.values(), key=lambda hazard: (hazard.consumer, hazard.producer))


def _rules_from(producer: Facts) -> list[Rule]:
    """Rules that this instruction can start, those with nothing to pass on left out."""
    return [
        rule
        for name in producer.classes
        for rule in _BY_PRODUCER.get(name, ())
        if producer.registers(rule.made)
    ]


_Open = tuple[tuple[Rule, frozenset[int]], ...]


def _too_close(
    index: int,
    producer: Facts,
    facts: Sequence[Facts],
    flow: ControlFlow,
    strict: bool,
) -> list[Hazard]:
    """Hazards that start at one instruction: walk forward until every rule's window is passed."""
    start: _Open = tuple((rule, producer.registers(rule.made)) for rule in _rules_from(producer))
    if not start:
        return []
    found: list[Hazard] = []
    seen: set[tuple[int, int, _Open]] = set()
    work: list[tuple[int, int, _Open]] = [(place, 0, start) for place in flow.successors[index]]
    while work:
        place, age, live = work.pop()
        if len(flow.predecessors[place]) > 1:
            if (place, age, live) in seen:
                continue
            seen.add((place, age, live))
        consumer = facts[place]
        after = age + consumer.states
        remaining: list[tuple[Rule, frozenset[int]]] = []
        for rule, ids in live:
            if rule.consumer in consumer.classes:
                common = ids & consumer.registers(rule.used)
                if common and (required := rule.needed(producer, consumer)) > age:
                    shown = common if min(common) >= 0 else frozenset[int]()
                    found.append(Hazard(index, place, rule, required, age, shown))
            if rule.producer in consumer.classes:
                ids = ids - consumer.registers(rule.made)
            if rule.window + strict > after and ids:
                remaining.append((rule, ids))
        if remaining:
            live = tuple(remaining)
            work.extend((following, after, live) for following in flow.successors[place])
    return found
