"""The replay, cycle by cycle, on programs small enough to be worked out by hand."""

from __future__ import annotations

import pytest

from asm_overrides.inspection.matrix import Purpose, classify
from asm_overrides.isa.parse import parse
from asm_overrides.timing import Constants, Steady, Track, port_bound, predict, replay
from asm_overrides.timing.replay import (
    BARRIER,
    LDS_QUEUE,
    LDS_WAIT,
    MATRIX_PIPE,
    MATRIX_READS,
    MATRIX_RESULT,
    MEMORY_WAIT,
    ORDER,
    PACKED,
    VECTOR_PORT,
    VECTOR_RESULT,
)
from asm_overrides.timing.replay import Replay as Replayed

MFMA = "v_mfma_f32_32x32x64_f8f6f4"
FIXED = Constants(
    slot=4,
    permlane=20,
    vector_result=4,
    transcendental_result=12,
    matrix_result_slots=4,
    packed_after_matrix=12,
    packed_waits_for_other=True,
    matrix_holds_vector=0.0,
    lds_latency=64,
    lds_queue=4,
    vmem_latency=500,
    smem_latency=200,
    barrier=4,
)
"""What the comments below calculate with, whatever the model's own constants become."""


def track(text: str, barriers_before: int = 0) -> Track:
    path = tuple(parse(text).instructions)
    matrices = classify(path).purposes
    useful = frozenset(place for place, each in matrices.items() if each is not Purpose.ROW_SUM)
    return Track("", path, useful, barriers_before)


def steady(first: str, second: str, *, joined: bool = False, late: int = 0) -> Steady:
    return Steady("", (track(first), track(second, late)), joined, "fp8", 128, "lean")


IDLE = "s_nop 15"


def starts(replayed: Replayed, wave: int, iteration: int = 0) -> list[tuple[int, str]]:
    return [
        (each.start, each.cause)
        for each in replayed.events
        if each.wave == wave and each.iteration == iteration
    ]


def first_iteration(program: Steady, constants: Constants = FIXED) -> Replayed:
    return replay(program, constants, warm=0, iterations=1)


def test_waves_take_turns_on_the_vector_port() -> None:
    # Both could go at 0; wave 0 does. Wave 1 waits for the port until 4. At 4 wave 0 could go on,
    # too, but wave 1 has waited longer; wave 0's second follows at 8, wave 1's at 12.
    text = "v_add_f32 v0, v0, v1\nv_add_f32 v0, v0, v1"
    replayed = first_iteration(steady(text, text))
    assert starts(replayed, 0) == [(0, ORDER), (8, VECTOR_PORT)]
    assert starts(replayed, 1) == [(4, VECTOR_PORT), (12, VECTOR_PORT)]


def test_priority_decides_who_takes_a_port_first() -> None:
    # Wave 1 raises its priority at 0. At 4 and at 8 both want the port: wave 1 has it, wave 0 not
    # before 12.
    text = "v_add_f32 v0, v0, v1\nv_add_f32 v0, v0, v1"
    replayed = first_iteration(steady(text, "s_setprio 1\n" + text))
    assert starts(replayed, 1) == [(0, ORDER), (4, ORDER), (8, ORDER)]
    assert starts(replayed, 0) == [(0, ORDER), (12, VECTOR_PORT)]


def test_dependents_wait_for_latencies() -> None:
    # The exponential of 0 may be read at 12. The next one needs only the port, free at 12 + 4. It
    # takes the port for 8, so the permlane (20) goes at 24 and the move behind that at 44.
    text = """
        v_exp_f32 v0, v1
        v_add_f32 v2, v0, v0
        v_exp_f32 v3, v1
        v_permlane32_swap_b32 v4, v5
        v_mov_b32 v6, v4
    """
    expected = [
        (0, ORDER),
        (12, VECTOR_RESULT),
        (16, ORDER),
        (24, VECTOR_PORT),
        (44, VECTOR_RESULT),
    ]
    assert starts(first_iteration(steady(text, IDLE)), 0) == expected


def test_matrix_instructions_chain_and_others_wait_for_their_result() -> None:
    # An fp8 32x32x64 takes the pipe for 64, and an accumulator chain needs no more. Registers of 32
    # bytes are read for 3 slots, in which the wave has no vector slot: 64 + 12. The reader of v0
    # comes 20 slots after the second one: 64 + 80.
    text = f"""
        {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
        {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
        v_mov_b32 v50, v51
        v_mov_b32 v52, v0
    """
    expected = [(0, ORDER), (64, MATRIX_RESULT), (76, MATRIX_READS), (144, MATRIX_RESULT)]
    assert starts(first_iteration(steady(text, IDLE)), 0) == expected


def test_operands_of_a_matrix_instruction_wait_longer_than_its_accumulator() -> None:
    # v[0:7] as an operand: 80 cycles; v[0:15] as an addend under another result: the same.
    for operands in ("v[0:7], v[40:47], v[64:79]", "v[32:39], v[40:47], v[0:15]"):
        text = f"""
            {MFMA} v[0:15], v[32:39], v[40:47], 0
            {MFMA} v[64:79], {operands}
        """
        expected = [(0, ORDER), (80, MATRIX_RESULT)]
        assert starts(first_iteration(steady(text, IDLE)), 0) == expected


def test_other_wave_has_the_vector_port_beside_a_matrix_instruction() -> None:
    # Wave 1's move needs the vector port, which wave 0's matrix instruction leaves alone; if it is
    # said to keep it while operands are read, the move comes 12 later.
    program = steady(f"{MFMA} v[0:15], v[32:39], v[40:47], v[0:15]", "v_mov_b32 v50, v51")
    assert starts(first_iteration(program), 1) == [(0, ORDER)]
    holding = Constants(matrix_holds_vector=1.0)
    assert starts(first_iteration(program, holding), 1) == [(12, VECTOR_PORT)]


def test_packed_arithmetic_waits_for_the_matrix_pipe() -> None:
    # Of its own wave always: 64 + 12 cycles; of the other wave as far as the constant says so.
    matrix = f"{MFMA} v[0:15], v[32:39], v[40:47], v[0:15]"
    packed = "v_pk_fma_f32 v[50:51], v[52:53], v[54:55], v[56:57]"
    own = first_iteration(steady(f"{matrix}\n{packed}", IDLE))
    assert starts(own, 0) == [(0, ORDER), (76, PACKED)]
    program = steady(f"s_nop 1\n{packed}", matrix)  # the matrix instruction is first, at 0
    assert starts(first_iteration(program), 0) == [(0, ORDER), (76, PACKED)]
    free = Constants(packed_waits_for_other=False)
    assert starts(first_iteration(program, free), 0) == [(0, ORDER), (8, ORDER)]


def test_lds_queue_takes_four_and_waits_count_results() -> None:
    # A b128 read is served for 16. Four fit: 0, 4, 8, 12. The fifth goes when the first is done, at
    # 16, the sixth at 32. Service of the six begins at 0, 16, .. 80, results come 64 later: two may
    # be outstanding when the fourth is there (48 + 64), none when the sixth is (80 + 64).
    reads = "\n".join(f"ds_read_b128 v[{4 * i}:{4 * i + 3}], v100" for i in range(6))
    text = f"{reads}\ns_waitcnt lgkmcnt(2)\ns_waitcnt lgkmcnt(0)"
    expected = [
        (0, ORDER), (4, ORDER), (8, ORDER), (12, ORDER), (16, ORDER), (32, LDS_QUEUE),
        (112, LDS_WAIT), (144, LDS_WAIT),
    ]  # fmt: skip
    assert starts(first_iteration(steady(text, IDLE)), 0) == expected


def test_waves_share_the_lds_queue() -> None:
    # Eight reads of 16 cycles, four places: both waves issue at 0 and 4, and then one a service.
    reads = "\n".join(f"ds_read_b128 v[{4 * i}:{4 * i + 3}], v100" for i in range(4))
    replayed = first_iteration(steady(reads, reads))
    assert starts(replayed, 0) == [(0, ORDER), (4, ORDER), (16, LDS_QUEUE), (48, LDS_QUEUE)]
    assert starts(replayed, 1) == [(0, ORDER), (4, ORDER), (32, LDS_QUEUE), (64, LDS_QUEUE)]


def test_memory_waits() -> None:
    # Loads of 0 and 4, results after 500: one outstanding is allowed at 500, none at 504.
    load = "buffer_load_dwordx4 v{}, s[0:3], 0 offen lds"
    text = f"{load.format(1)}\n{load.format(2)}\ns_waitcnt vmcnt(1)\ns_waitcnt vmcnt(0)"
    expected = [(0, ORDER), (4, ORDER), (500, MEMORY_WAIT), (504, ORDER)]
    assert starts(first_iteration(steady(text, IDLE)), 0) == expected


def test_barrier_joins_waves_of_a_workgroup() -> None:
    # Wave 1: exponentials at 0 and (port) 8, at the barrier at 12; both leave at 12 + 4.
    first, second = "s_barrier\nv_mov_b32 v0, v1", "v_exp_f32 v0, v1\nv_exp_f32 v2, v3\ns_barrier"
    replayed = first_iteration(steady(first, second, joined=True))
    assert starts(replayed, 0) == [(16, BARRIER), (16, ORDER)]
    assert starts(replayed, 1) == [(0, ORDER), (8, VECTOR_PORT), (16, BARRIER)]
    # alone, wave 0 passes its barrier in 4 cycles; the port is taken until 8 and from 8 again
    alone = first_iteration(steady(first, second))
    assert starts(alone, 0) == [(4, BARRIER), (8, VECTOR_PORT)]


def test_late_wave_meets_the_other_one_a_barrier_behind() -> None:
    # Of two barriers an iteration wave 1 passes one more before its loop: it begins when wave 0 has
    # passed its first (at 0 + 4), and its own first is wave 0's second. Wave 0 is there at 12.
    text = "s_barrier\nv_mov_b32 v0, v1\nv_mov_b32 v0, v1\ns_barrier\nv_mov_b32 v2, v3"
    replayed = first_iteration(steady(text, text, joined=True, late=1))
    assert starts(replayed, 0)[:4] == [(4, BARRIER), (4, ORDER), (8, ORDER), (16, BARRIER)]
    assert starts(replayed, 1)[0] == (16, BARRIER)


def test_nops_take_their_states() -> None:
    replayed = first_iteration(steady("s_nop 3\nv_mov_b32 v0, v1", IDLE))
    assert starts(replayed, 0) == [(0, ORDER), (16, ORDER)]


PAIR = steady(
    f"""
        {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
        s_barrier
        v_exp_f32 v50, v51
        s_barrier
    """,
    f"""
        {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
        s_barrier
        v_exp_f32 v50, v51
        s_barrier
    """,
    joined=True,
    late=1,
)


def test_shares_stalls_and_idle_time_of_a_ping_pong() -> None:
    # A stage: one wave's matrix instruction (64 in the pipe, 4 to issue), beside it the other one's
    # exponential; both are at the barrier in time and leave 4 after the matrix instruction's issue.
    # The next stage's goes to the other wave, and waits for the pipe: 64 cycles a stage, none idle.
    replayed = replay(PAIR, FIXED, warm=4, iterations=2)
    assert replayed.period == 128
    assert replayed.matrix_busy == replayed.useful_share == 1.0
    assert replayed.idle_matrix() == {}
    # Of a wave's 128 cycles 8 are issues. The matrix instruction issues 8 before a stage ends, so
    # it waits 56 in each; the exponential waits 4, since its wave's matrix instruction, issued 8
    # before, reads its operands for 12; the rest is spent at the barriers.
    stalls = replayed.stalls()
    assert stalls[MATRIX_PIPE] == 2 * 56
    assert stalls[MATRIX_READS] == 2 * 4
    assert stalls[BARRIER] == 2 * (128 - 8 - 56 - 4)


def test_idle_matrix_time_is_divided_among_what_the_feeding_wave_did() -> None:
    # One wave: 64 of the pipe, then 3 exponentials behind the result (80, +8, +8) and one slot
    # more until the next matrix instruction (100). Of the 36 idle cycles the wave was held for 16
    # by the result and for 4 + 4 by the port, and issued three exponentials in 4 each.
    text = f"""
        {MFMA} v[0:15], v[32:39], v[40:47], v[0:15]
        v_exp_f32 v50, v0
        v_exp_f32 v51, v1
        v_exp_f32 v52, v2
    """
    replayed = replay(steady(text, "s_nop 0"), FIXED, warm=1, iterations=2)
    assert replayed.period == 100
    assert replayed.idle_matrix() == {
        MATRIX_RESULT: 16.0,
        "issuing vector": 12.0,
        VECTOR_PORT: 8.0,
    }
    assert replayed.matrix_busy == pytest.approx(0.64)


def test_port_bound_adds_up_both_waves() -> None:
    # Matrix 2 x 64, vector 2 x 8; four instructions of 4 each wave.
    bound = port_bound(PAIR, FIXED)
    assert bound.ports == {"matrix": 128, "vector": 16, "lds": 0, "issue": 16}
    assert (bound.limit, bound.share, bound.cycles) == ("matrix", 1.0, 128)
    holding = port_bound(PAIR, Constants(matrix_holds_vector=1.0))
    assert holding.ports["vector"] == 16 + 2 * 12


def test_prediction_scans_offsets_and_repeats() -> None:
    text = f"{MFMA} v[0:15], v[32:39], v[40:47], v[0:15]\nv_exp_f32 v50, v0\nv_mov_b32 v51, v50"
    one, two = predict(steady(text, text), FIXED), predict(steady(text, text), FIXED)
    assert one.worst.useful_share <= one.best.useful_share <= one.bound.share
    assert one.worst.events == two.worst.events
    assert one.as_json() == two.as_json()
