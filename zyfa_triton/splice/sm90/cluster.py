"""Decides how a kernel for one workgroup becomes one for a cluster of two that work together.

Triton knows clusters only as one larger workgroup. Here each of the two runs the kernel, and what
one does for the other is marked (`marker.in_cluster`) in front of the instruction:

    ready    all barriers in shared memory are set up; the threads of the first warps say so
    begin    waits until both workgroups are ready; by the warps that reach over, once
    copy     the copy that follows fills the memory of both, and counts at the barriers of both
    arrive   the arrival that follows is at the other workgroup's barrier
    tell     so is this one, and who waits for it sees what was written before it: for that it
             waits itself, for all writes under way

Threads that come to life outside of the first warps say that they are ready at once: they set up
nothing. They do not wait, because the first warps may be waiting for their registers.
It sees PTX only, and no loop.
"""

from __future__ import annotations

import re

from zyfa_triton.splice.errors import require
from zyfa_triton.splice.markers import CLUSTER

_MARK = re.compile(rf"^[ \t]*{re.escape(CLUSTER)}\w+ (\w+)[ \t]*$", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<head>\.visible \.entry .*?^\))(?P<bounds>.*?)^\{\n", re.M | re.S)
_DECLARED = re.compile(r"(?:[ \t]*\.reg [^\n]*\n)*")
_THREADS = re.compile(r"^\.reqntid (\d+)", re.MULTILINE)
_COPY = re.compile(
    r"(cp\.async\.bulk\.tensor\.\dd)\.shared::(?:cluster|cta)(\.global\.mbarrier::complete_tx::bytes)"
    r" ([^;]*);"
)
_ARRIVE = re.compile(
    r"^[ \t]*(?P<guard>@%p\d+)[ \t]+mbarrier\.arrive\.shared::cta\.b64 _, "
    r"\[(?P<at>%r\d+)\](?P<count>(?:, \d+)?);",
    re.MULTILINE,
)
_PASSED = re.compile(r"^(?!\$L__tmp)[$\w]+:|\bbra\b|cp\.async|mbarrier\.(?!expect)", re.MULTILINE)
_FIRST_WARPS = 128  # threads of the kernel's default partition
_READY = "fence.mbarrier_init.release.cluster;\n\tbarrier.cluster.arrive.release;"
_BEGIN = "barrier.cluster.wait.acquire;"
_ALREADY = """\
	{{
	.reg .pred zyc_other;
	.reg .b32 zyc_thread;
	mov.u32 zyc_thread, %tid.x;
	setp.ge.u32 zyc_other, zyc_thread, {first};
	@zyc_other barrier.cluster.arrive.relaxed;
	}}
"""
_THERE = """\
	{{
	.reg .b32 zyc_rank, zyc_there;
	mov.u32 zyc_rank, %cluster_ctarank;
	xor.b32 zyc_rank, zyc_rank, 1;
	mapa.shared::cluster.u32 zyc_there, {at}, zyc_rank;
	{guard} mbarrier.arrive{scope}.shared::cluster.b64 _, [zyc_there]{count};
	}}"""


def as_cluster(ptx: str, size: int) -> str:
    """PTX of the kernel for clusters of `size` workgroups; of one, as it is.

    Raises:
        SpliceError: the marks are not as above, or what they stand before is not there.
    """
    head, *rest = _MARK.split(ptx)
    marks, texts = rest[::2], rest[1::2]
    if size == 1:
        require(not marks, "the kernel's marks ask for a cluster, its recipe has none")
        return ptx
    for what in ("ready", "begin"):
        require(marks.count(what) == 1, f"PTX holds the mark {what} {marks.count(what)} times")
    require("copy" in marks and "arrive" in marks, "nothing is done for the other workgroup")
    return _with_entry(head + "".join(map(_changed, marks, texts)), size)


def _changed(what: str, after: str) -> str:
    """A mark and the text up to the next one, as a cluster's."""
    if what == "ready":
        return "\t" + _READY + after
    if what == "begin":
        return "\t" + _BEGIN + after
    pattern = {"copy": _COPY, "arrive": _ARRIVE, "tell": _ARRIVE}.get(what)
    require(pattern is not None, f"the mark {what} is unknown")
    assert pattern is not None
    found = pattern.search(after)
    require(found, f"PTX holds no {what} after the mark")
    assert found is not None
    require(not _PASSED.search(after[: found.start()]), f"PTX holds something before the {what}")
    if what == "copy":
        text = f"{found[1]}.shared::cluster{found[2]}.multicast::cluster {found[3]}, zyc_everybody;"
    else:
        text = _THERE.format(
            guard=found["guard"],
            at=found["at"],
            count=found["count"],
            scope=".release.cluster" if what == "tell" else "",
        )
    return after[: found.start()] + text + after[found.end() :]


def _with_entry(ptx: str, size: int) -> str:
    entries = list(_ENTRY.finditer(ptx))
    require(len(entries) == 1, f"PTX holds {len(entries)} kernels, not one")
    entry = entries[0]
    threads = _THREADS.search(entry["bounds"])
    require(threads and int(threads[1]) > _FIRST_WARPS, "the kernel's warps have no other tasks")
    declared = _DECLARED.match(ptx, entry.end())
    assert declared is not None
    body = (
        f"\t.reg .b16 zyc_everybody;\n\tmov.b16 zyc_everybody, {(1 << size) - 1};\n"
        + _ALREADY.format(first=_FIRST_WARPS)
    )
    bounds = entry["bounds"] + f".explicitcluster\n.reqnctapercluster {size}\n"
    head = ptx[: entry.start()] + entry["head"] + bounds + "{\n"
    return head + ptx[entry.end() : declared.end()] + body + ptx[declared.end() :]
