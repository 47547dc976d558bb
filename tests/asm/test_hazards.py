"""Decides whether the wait-state table is LLVM's and programs are searched on every path."""

from __future__ import annotations

import random

import pytest

from asm_overrides.emulator.hazards import RULES, find_hazards, required_wait_states
from asm_overrides.emulator.hazards.facts import Facts
from asm_overrides.isa import parse, parse_instruction
from tests.asm import hazard_pairs
from tests.asm.llvm import tool

PRODUCERS = hazard_pairs.producers()
CONSUMERS = hazard_pairs.consumers()
MFMA = "v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[40:47], v[48:55], v[0:15]"
BF16 = "v_mfma_f32_32x32x16_bf16 v[0:15], v[40:43], v[48:51], v[0:15]"
IDLE = "s_mov_b32 s90, s91"


@pytest.fixture(scope="module")
def llc() -> str:
    """llc of LLVM 22, whose recogniser is the authority."""
    return tool("llc")


@pytest.fixture(scope="module")
def inserted(llc: str) -> dict[tuple[str, str], list[str]]:
    """llc's text for every pair, what it inserted included."""
    pairs = [(producer, consumer) for producer in PRODUCERS for consumer in CONSUMERS]
    bodies = [[PRODUCERS[producer], CONSUMERS[consumer]] for producer, consumer in pairs]
    return dict(zip(pairs, hazard_pairs.padded(llc, bodies), strict=True))


def nop_states(lines: list[str]) -> int:
    return sum(int(line.split()[1]) + 1 for line in lines if line.startswith("s_nop"))


@pytest.mark.parametrize("producer", PRODUCERS)
def test_wait_states_are_what_llc_inserts(
    producer: str, inserted: dict[tuple[str, str], list[str]]
) -> None:
    wrong = {}
    for consumer in CONSUMERS:
        lines = inserted[producer, consumer]
        first, second = parse_instruction(lines[0]), parse_instruction(lines[-1])
        ours, theirs = required_wait_states(first, second), nop_states(lines)
        if ours != theirs:
            wrong[consumer] = f"{first} -> {second}: table {ours}, llc {theirs}"
    assert not wrong


def test_pairs_reach_every_rule(inserted: dict[tuple[str, str], list[str]]) -> None:
    """Rules whose removal no pair would notice are not tested by the comparison above."""
    reached = set()
    for lines in inserted.values():
        first, second = Facts(parse_instruction(lines[0])), Facts(parse_instruction(lines[-1]))
        theirs = nop_states(lines)
        for rule in RULES:
            applies = rule.producer in first.classes and rule.consumer in second.classes
            applies = applies and bool(first.registers(rule.made) & second.registers(rule.used))
            if applies and theirs and rule.needed(first, second) == theirs:
                reached.add(rule.name)
    assert reached == {rule.name for rule in RULES}


@pytest.mark.parametrize("fillers", [0, 1, 5, 10, 11, 12, 18, 19, 20])
@pytest.mark.parametrize("producer", ["fp8 32x32x64", "V_MFMA_F32_32X32X16_BF16_vgprcd_e64"])
def test_distance_is_counted_as_llc_counts_it(llc: str, producer: str, fillers: int) -> None:
    between = [f"{hazard_pairs.s(80)} = S_MOV_B32 1"] * fillers
    body = [PRODUCERS[producer], *between, CONSUMERS["read"]]
    (lines,) = hazard_pairs.padded(llc, [body])
    program = parse("\n".join(line for line in lines if not line.startswith("s_nop")))
    hazards = find_hazards(program.instructions, {})
    lacking = [hazard.required - hazard.present for hazard in hazards]
    assert lacking == ([nop_states(lines)] if nop_states(lines) else [])


@pytest.fixture(scope="module")
def random_programs(llc: str) -> list[list[str]]:
    """llc's text of 300 programs of 14 random instructions each."""
    chance = random.Random(1)
    choices = [*PRODUCERS.values(), *CONSUMERS.values()]
    bodies = [[chance.choice(choices) for _ in range(14)] for _ in range(300)]
    return hazard_pairs.padded(llc, bodies)


def test_every_nop_of_random_programs_is_needed(random_programs: list[list[str]]) -> None:
    unneeded, nops = [], 0
    for lines in random_programs:
        for place, line in enumerate(lines):
            if line.startswith("s_nop"):
                nops += 1
                fewer = int(line.split()[1]) - 1
                shorter = [f"s_nop {fewer}"] if fewer >= 0 else []
                program = parse("\n".join([*lines[:place], *shorter, *lines[place + 1 :]]))
                if not find_hazards(program.instructions, {}, strict=True):
                    unneeded.append((lines, place))
    assert nops > 1000
    assert unneeded == []


def test_random_programs_padded_by_llc_are_clean(random_programs: list[list[str]]) -> None:
    """But for matrix results that llc loses sight of behind a shorter matrix instruction."""
    for lines in random_programs:
        program = parse("\n".join(lines))
        for hazard in find_hazards(program.instructions, {}):
            between = program.instructions[hazard.producer + 1 : hazard.consumer]
            writers = [each for each in between if each.spec.matrix is not None]
            consumer = program.instructions[hazard.consumer]
            assert any(each.writes & consumer.reads for each in writers), lines


def test_strict_reports_the_distance_that_llvm_does_not_look_at() -> None:
    program = parse("\n".join([MFMA, *[IDLE] * 19, "v_mov_b32_e32 v90, v0", "s_endpgm"]))
    assert find_hazards(program.instructions, program.labels) == []
    (hazard,) = find_hazards(program.instructions, program.labels, strict=True)
    assert (hazard.required, hazard.present) == (20, 19)


def test_nops_count_their_operand_plus_one() -> None:
    for nops, expected in (("s_nop 10", 1), ("s_nop 11", 0)):
        program = parse("\n".join([BF16, nops, "v_mov_b32_e32 v90, v0"]))
        assert len(find_hazards(program.instructions, {})) == expected


def test_the_shortest_path_decides() -> None:
    text = f"""
        {BF16}
        s_cbranch_scc1 .Lnear
        s_nop 15
    .Lnear:
        v_mov_b32_e32 v90, v0
        s_endpgm
    """
    program = parse(text)
    (hazard,) = find_hazards(program.instructions, program.labels)
    assert (hazard.required, hazard.present, hazard.producer) == (12, 1, 0)
    message = hazard.describe(program.instructions)
    assert "needs 12 wait states after line 2" in message
    assert "has 1" in message


def test_a_loop_closes_over_its_back_edge() -> None:
    text = f"""
        s_nop 0
    .Lloop:
        v_mov_b32_e32 v90, v0
        s_nop 15
        {BF16}
        s_cbranch_scc1 .Lloop
        s_endpgm
    """
    program = parse(text)
    (hazard,) = find_hazards(program.instructions, program.labels)
    assert (hazard.consumer, hazard.producer, hazard.present) == (1, 3, 1)


def test_the_latest_writer_hides_earlier_ones() -> None:
    text = "\n".join(
        [
            BF16,
            "s_nop 15",
            "v_mfma_f32_16x16x32_bf16 v[0:3], v[40:43], v[48:51], v[0:3]",
            "v_mov_b32_e32 v90, v0",
            "v_mov_b32_e32 v91, v8",
        ]
    )
    (hazard,) = find_hazards(parse(text).instructions, {})
    assert (hazard.producer, hazard.required, hazard.present) == (2, 8, 0)


def test_unreachable_code_is_not_judged() -> None:
    program = parse(f"s_endpgm\n{BF16}\nv_mov_b32_e32 v90, v0\n")
    assert find_hazards(program.instructions, {}) == []


def test_memory_clause_of_three() -> None:
    text = """
        buffer_load_dword v4, v5, s[40:43], 0 offen
        buffer_load_dword v6, v7, s[40:43], 0 offen
        buffer_load_dword v8, v4, s[40:43], 0 offen
    """
    program = parse(text)
    (hazard,) = find_hazards(program.instructions, {})
    assert (hazard.producer, hazard.consumer) == (0, 2)
    assert find_hazards(program.instructions, {}, xnack=False) == []
    broken = parse(text.replace("buffer_load_dword v8", "s_nop 0\nbuffer_load_dword v8"))
    assert find_hazards(broken.instructions, {}) == []


@pytest.mark.parametrize("length", [2, 4, 5, 6, 7])
@pytest.mark.parametrize("accumulators", [False, True])
def test_clauses_are_as_long_as_llvms_memory(llc: str, length: int, accumulators: bool) -> None:
    """The last load overwrites the address of the first of `length` loads."""
    descriptor = hazard_pairs.s(40, 4)
    address = hazard_pairs.v(91)
    body = [
        hazard_pairs.buffer_load(hazard_pairs.v(i), address, descriptor) for i in range(length - 1)
    ]
    body.append(hazard_pairs.buffer_load(address, hazard_pairs.v(92), descriptor))
    body[0] = hazard_pairs.buffer_load(hazard_pairs.v(0), address, descriptor)
    body[1:-1] = [line.replace("$vgpr91", "$vgpr93") for line in body[1:-1]]
    if accumulators:
        body.insert(0, "$agpr0 = V_ACCVGPR_WRITE_B32_e64 $vgpr60, implicit $exec")
    (lines,) = hazard_pairs.padded(llc, [body])
    program = parse("\n".join(line for line in lines if not line.startswith("s_nop")))
    assert len(find_hazards(program.instructions, {})) == nop_states(lines)


def test_samples_of_the_table_read_like_the_design() -> None:
    """The figures that docs and recipes quote."""

    def states(first: str, second: str) -> int:
        return required_wait_states(parse_instruction(first), parse_instruction(second))

    read = "v_mov_b32_e32 v90, v0"
    fp4 = MFMA.replace("v[40:47]", "v[40:43]").replace("v[48:55]", "v[48:51]")
    assert states(MFMA, read) == 20
    assert states(f"{fp4} cbsz:4 blgp:4", read) == 12
    assert states(BF16, read) == 12
    assert states(MFMA, MFMA) == 0
    assert states(MFMA.replace("v[0:15], v[40", "v[64:79], v[40"), "v_mov_b32_e32 v0, v90") == 15
    assert states("v_mov_b32_e32 v0, v90", MFMA) == 2
    assert states("v_exp_f32_e32 v0, v90", read) == 1
    assert states("v_readfirstlane_b32 s0, v0", "v_mov_b32_e32 v1, s0") == 2
    assert states("v_cmp_lt_f32_e32 vcc, v0, v1", "v_cndmask_b32_e32 v0, v1, v2, vcc") == 2
    assert states("v_mov_b32_e32 v0, v90", "v_permlane32_swap_b32_e32 v0, v1") == 2
    assert states("s_mov_b32 m0, s0", "buffer_load_dwordx4 v0, s[0:3], 0 offen lds") == 1
