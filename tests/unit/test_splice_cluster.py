"""A kernel's text for a cluster of two workgroups: what becomes of it, and what is refused."""

from __future__ import annotations

import pytest

from zyfa_triton.splice import SpliceError
from zyfa_triton.splice.sm90.cluster import as_cluster

COPY = (
    "\t@%p4 cp.async.bulk.tensor.4d.shared::{space}.global.mbarrier::complete_tx::bytes "
    "[%r1], [%rd1, {{%r2, %r3, %r4, %r5}}], [%r6];"
)
ARRIVE = "\t@%p5 mbarrier.arrive.shared::cta.b64 _, [%r7]{count};"


def mark(what: str) -> str:
    return f"\t// begin inline asm\n\t@splice-cluster loop__0123 {what}\n\t// end inline asm"


LINES = (
    mark("ready"),
    "\tbra.uni $L__BB0_1;\n$L__BB0_1:",
    mark("begin"),
    COPY.format(space="cluster"),
    mark("copy"),
    "\tbar.warp.sync -1;\n\telect.sync %r8|%p4, -1;\n$L__tmp3:",
    COPY.format(space="cta"),
    mark("arrive"),
    ARRIVE.format(count=", 4"),
    mark("tell"),
    ARRIVE.format(count=""),
    ARRIVE.format(count=""),
)


def kernel(*lines: str, threads: int = 384) -> str:
    text = "\n".join(lines or LINES)
    return (
        f".visible .entry attention(\n\t.param .u32 first\n)\n.reqntid {threads}\n.maxnreg 168\n"
        f"{{\n\t.reg .pred \t%p<9>;\n\t.reg .b32 \t%r<9>;\n\n{text}\n\tret;\n}}\n"
    )


def test_what_is_marked_and_nothing_else_becomes_a_clusters() -> None:
    text = as_cluster(kernel(), 2)
    assert text.count(".reqnctapercluster 2\n") == text.count(".explicitcluster\n") == 1
    assert text.index(".reqnctapercluster") < text.index("{\n\t.reg .pred")
    shared = (
        "\t@%p4 cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%r1], [%rd1, {%r2, %r3, %r4, %r5}], [%r6], zyc_everybody;"
    )
    assert shared in text and text.count("multicast") == 1
    assert COPY.format(space="cluster") in text  # the one in front of which there is no mark
    there = "@%p5 mbarrier.arrive{}.shared::cluster.b64 _, [zyc_there]{};"
    assert there.format("", ", 4") in text and there.format(".release.cluster", "") in text
    assert text.count(ARRIVE.format(count="")) == 1
    assert text.count("mapa.shared::cluster.u32 zyc_there, %r7, zyc_rank;") == 2
    # the other warps say so before all else, the first ones when barriers are set up
    assert text.index("barrier.cluster.arrive.relaxed") < text.index("fence.mbarrier_init")
    assert text.index("barrier.cluster.arrive.release") < text.index("barrier.cluster.wait.acquire")
    assert "zyc_other, zyc_thread, 128;" in text and "mov.b16 zyc_everybody, 3;" in text
    assert "@splice" not in text


def test_a_kernel_of_one_workgroup_stays_as_it_is() -> None:
    plain = kernel(COPY.format(space="cta"))
    assert as_cluster(plain, 1) == plain
    with pytest.raises(SpliceError, match="marks ask for a cluster, its recipe has none"):
        as_cluster(kernel(), 1)


def without(*which: int) -> tuple[str, ...]:
    return tuple(line for number, line in enumerate(LINES) if number not in which)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (kernel(*without(0)), "PTX holds the mark ready 0 times"),
        (kernel(*LINES, mark("ready")), "PTX holds the mark ready 2 times"),
        (kernel(*without(2)), "PTX holds the mark begin 0 times"),
        (kernel(*without(4)), "nothing is done for the other workgroup"),
        (kernel(*without(7)), "nothing is done for the other workgroup"),
        (kernel(*without(6)), "PTX holds no copy after the mark"),
        (kernel(*without(8)), "PTX holds no arrive after the mark"),
        (kernel(*LINES[:5], "\tbra.uni $L__BB0_1;", *LINES[5:]), "something before the copy"),
        (kernel(*LINES[:8], "$L__BB0_2:", *LINES[8:]), "something before the arrive"),
        (kernel(*LINES[:8], COPY.format(space="cta"), *LINES[8:]), "something before the arrive"),
        (kernel(*LINES, mark("anything")), "the mark anything is unknown"),
        (kernel(threads=128), "warps have no other tasks"),
        (kernel() + kernel(*without(0, 2, 4, 7, 9)), "PTX holds 2 kernels, not one"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SpliceError, match=reason):
        as_cluster(text, 2)
