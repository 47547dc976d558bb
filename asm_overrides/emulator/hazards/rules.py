"""Decides how many wait states gfx950 demands between two instructions; does not look for pairs.

One table. The facts are those of LLVM's hazard recogniser (version 22) for gfx950, which pads code
that LLVM generates; assemblers add nothing. A rule applies if the producer is in the one class, the
consumer in the other, and the named register sets meet. tests/asm/test_hazards.py compares every
row with what llc inserts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asm_overrides.emulator.hazards.facts import Facts

States = Callable[[Facts, Facts], int]


@dataclass(frozen=True, eq=False)
class Rule:
    """Distance that a producer needs from a consumer.

    Attributes:
        name: slug used in messages.
        producer, consumer: classes (see facts.py).
        made, used: register sets whose overlap makes the pair dependent.
        states: wait states between the two, a number or a function of both.
        window: how far apart a pair is looked at; LLVM's is 19 even where it inserts 20, so that
            compiled code holds pairs 19 apart, which therefore pass.
        why: what the hardware does otherwise.
    """

    name: str
    producer: str
    made: str
    consumer: str
    used: str
    states: int | States
    window: int
    why: str

    def needed(self, producer: Facts, consumer: Facts) -> int:
        """Wait states for this pair, provided that the register sets meet."""
        return self.states if isinstance(self.states, int) else self.states(producer, consumer)


def _fixed(
    name: str, producer: str, made: str, consumer: str, used: str, states: int, why: str
) -> Rule:
    return Rule(name, producer, made, consumer, used, states, states, why)


_LOOK_BACK = 19


def _result_visible(producer: Facts, consumer: Facts) -> int:
    """Matrix result read by anything that is not a matrix instruction."""
    passes = producer.passes
    if "dgemm" in producer.classes:
        if "memory" in consumer.classes:
            return 9 if passes == 4 else 18
        return 6 if passes == 4 else 19
    if "sgemm" in producer.classes:
        return passes + 2
    return passes + 3 + (passes != 2)


def _result_overwritten(producer: Facts, consumer: Facts) -> int:
    passes = producer.passes
    if "dgemm" in producer.classes:
        return 6 if passes == 4 else 11
    if "sgemm" in producer.classes:
        return passes + 2
    return passes + 3 + (passes != 2)


def _addend_overwritten(producer: Facts, consumer: Facts) -> int:
    return {2: 1, 4: 3, 8: 7}.get(producer.passes, 15)


def _factor_of_next(producer: Facts, consumer: Facts) -> int:
    passes = producer.passes
    if "dgemm" in producer.classes:
        return 6 if passes == 4 else 19
    if "sgemm" in producer.classes:
        return passes + 2
    return passes + 3 + (passes != 2)


def _addend_of_next(producer: Facts, consumer: Facts) -> int:
    """Accumulation chains: the same registers follow at once, a partial overlap does not."""
    passes = producer.passes
    chain = producer.destination
    addend = consumer.addend
    assert chain is not None and addend is not None
    if (chain.first, chain.count) == (addend.first, addend.count):
        both_small = all(
            "dgemm" in side.classes and side.passes == 4 for side in (producer, consumer)
        )
        return 4 if both_small else 2 if passes == 2 else 0
    to_xdl = "xdl" in consumer.classes
    if "dgemm" in producer.classes:
        return 0 if to_xdl else 4 if passes == 4 else 17
    if "sgemm" in producer.classes:
        return 0 if to_xdl else passes
    return passes + 2 if to_xdl else passes + 1 + (passes != 2)


def _dot_read(producer: Facts, consumer: Facts) -> int:
    return 0 if producer.instruction.opcode == consumer.instruction.opcode else 3


def _dot_factor(producer: Facts, consumer: Facts) -> int:
    return 3 if producer.instruction.opcode == consumer.instruction.opcode else 0


RULES: tuple[Rule, ...] = (
    # Scalar results of vector instructions.
    _fixed("sgpr-to-vmem", "valu", "writes", "vmem", "scalar_reads", 5,
           "a scalar register written by a vector instruction reaches memory instructions late"),
    _fixed("sgpr-to-valu", "valu", "writes", "valu", "scalar_uses", 2,
           "a scalar register or VCC written by a vector instruction reaches others late"),
    _fixed("sgpr-to-lane-select", "valu", "writes", "lane select", "lane_select", 4,
           "the lane number is fetched early"),
    _fixed("vcc-to-div-fmas", "valu", "writes", "div_fmas", "vcc", 4,
           "v_div_fmas fetches VCC early"),
    _fixed("exec-to-lane-access", "valu", "writes", "lane access", "exec", 4,
           "lane accesses fetch EXEC early"),
    _fixed("exec-to-mfma", "valu", "writes", "mfma", "exec", 4,
           "matrix instructions fetch EXEC early"),
    _fixed("exec-to-dpp", "valu", "writes", "dpp", "exec", 5,
           "DPP fetches EXEC early"),
    _fixed("exec-to-permlane", "cmpx", "always", "permlane", "always", 4,
           "permlane fetches EXEC early"),
    # Vector results of vector instructions.
    _fixed("trans-to-valu", "trans", "defs", "not trans", "uses", 1,
           "the transcendental unit's result is not forwarded"),
    _fixed("partial-to-valu", "partial", "defs", "valu", "touched", 1,
           "a result merged into its destination is not forwarded"),
    _fixed("vgpr-to-lane-read", "valu", "writes", "lane read", "lane_source", 1,
           "lane reads fetch their source early"),
    _fixed("vgpr-to-dpp", "any", "writes", "dpp", "vector_uses", 2,
           "DPP fetches its source early"),
    _fixed("vgpr-to-permlane", "valu", "writes", "permlane", "vector_uses", 2,
           "permlane fetches its sources early"),
    _fixed("vgpr-to-mfma", "plain valu", "writes", "mfma", "uses", 2,
           "matrix instructions fetch their sources early"),
    Rule("dot-to-other", "dot", "defs", "not mfma", "uses", _dot_read, 3,
         "a dot product's result is late for other instructions"),
    Rule("dot-to-factor", "dot", "defs", "dot", "factors", _dot_factor, 3,
         "a dot product's result is late as a factor of the next"),
    Rule("dot-overwritten", "dot", "defs", "not mfma", "defs", _dot_read, 3,
         "a dot product's late result would overwrite the newer one"),
    # Matrix instructions.
    Rule("mfma-to-other", "mfma", "defs", "not mfma", "uses", _result_visible, _LOOK_BACK,
         "the matrix result is not yet written"),
    Rule("mfma-overwritten", "mfma", "defs", "not mfma", "defs", _result_overwritten, _LOOK_BACK,
         "the late matrix result would overwrite the newer one"),
    Rule("mfma-addend-overwritten", "xdl", "addend", "not mfma", "defs", _addend_overwritten, 15,
         "the matrix instruction has not read its addend yet"),
    Rule("mfma-to-factor", "mfma", "defs", "mfma", "factors", _factor_of_next, _LOOK_BACK,
         "the matrix result is not yet written when the next reads it as a factor"),
    Rule("mfma-to-addend", "mfma", "defs", "mfma", "addend", _addend_of_next, 18,
         "a matrix result is forwarded as addend only between identical registers"),
    _fixed("dgemm-to-fma-f64", "dgemm", "always", "fma f64", "always", 2,
           "both use the double-precision unit"),
    # Memory and state.
    _fixed("store-data-overwritten", "wide store", "store_data", "valu", "vector_defs", 2,
           "a store of more than 8 bytes has not read its data yet"),
    _fixed("m0-to-reader", "salu", "writes", "m0 reader", "m0", 1,
           "M0 is fetched early"),
    _fixed("setreg-to-hwreg", "setreg", "hwreg", "hwreg access", "hwreg", 2,
           "hardware registers are written late"),
)  # fmt: skip
