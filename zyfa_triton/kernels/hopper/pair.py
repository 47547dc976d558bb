"""What the two workgroups of a cluster, which share K and V, do for one another.

They take neighbouring row tiles at a time. Each copies one half of every tile of K and V, and the
copy arrives in the memory of both, so that a tile is read once for both. The warpgroups give each
place back to both copying warps.
Only a spliced kernel can be a cluster's: see `zyfa_triton.splice.sm90.cluster`.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from zyfa_triton.kernels.hopper.compat import as_tile
from zyfa_triton.kernels.hopper.schedule import key_blocks
from zyfa_triton.splice.marker import in_cluster

WARPS = gl.constexpr(4)  # of a computing warpgroup; each counts at the barriers of K and V
MAIL = gl.constexpr(16)  # places for tiles on their way, more than one workgroup can be ahead by


@gluon.jit
def _arrive_there(LOOP: gl.constexpr, WHAT: gl.constexpr, barrier, COUNT: gl.constexpr = 1):
    in_cluster(LOOP, WHAT)
    mbarrier.arrive(barrier, count=COUNT)


@gluon.jit
def parts_of(ring, desc, STAGES: gl.constexpr, CLUSTER: gl.constexpr):
    """A ring of tiles as one of what a copy by the descriptor fills: workgroup w of the cluster
    copies part w of a tile."""
    if CLUSTER == 1:
        return ring
    else:
        shape: gl.constexpr = [CLUSTER * STAGES] + desc.block_shape  # noqa: RUF005 - as in `forward`
        return as_tile(ring, desc.dtype, shape, desc.layout)


@gluon.jit
def next_tile(counter_ptr, number, from_other, LOOP: gl.constexpr, CLUSTER: gl.constexpr):
    """Place in the order of the tiles that come after the number-th: the first workgroup draws it
    and tells the other. counter_ptr: the counter, then MAIL numbers a cluster."""
    clusters = gl.num_programs(0) // CLUSTER
    if CLUSTER == 1:
        return clusters + gl.atomic_add(counter_ptr, 1, sem="relaxed")
    else:
        drawn, _ = from_other
        place = number % MAIL
        mail_ptr = counter_ptr + 1 + gl.program_id(0) // CLUSTER * MAIL + place
        if gl.program_id(0) % CLUSTER == 0:
            index = clusters + gl.atomic_add(counter_ptr, 1, sem="relaxed")
            gl.atomic_xchg(mail_ptr, index, sem="relaxed")
            _arrive_there(LOOP, "tell", drawn.index(place))
        else:
            mbarrier.wait(drawn.index(place), number // MAIL & 1)
            index = gl.atomic_add(mail_ptr, 0, sem="acquire")
        return index


@gluon.jit
def give_back(used, place, LOOP: gl.constexpr, CLUSTER: gl.constexpr):
    """This warpgroup needs what lies in a place of the rings no more."""
    mbarrier.arrive(used.index(place), count=WARPS)
    if CLUSTER > 1:
        _arrive_there(LOOP, "arrive", used.index(place), WARPS)


@gluon.jit
def blocks_of_other(
    m_block, blocks, seqlen_q, seqlen_k, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    IS_CAUSAL: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """How many blocks of keys are copied for the other's rows before the first one of ours."""
    pair = m_block // CLUSTER
    return key_blocks(pair, seqlen_q, seqlen_k, CLUSTER * ROWS, BLOCK_N, IS_CAUSAL) - blocks


@gluon.jit
def leave(from_other, LOOP: gl.constexpr):
    """Until the other workgroup, too, reaches over no more: there is no memory of one that has
    ended."""
    _, done = from_other
    _arrive_there(LOOP, "tell", done.index(0))
    mbarrier.wait(done.index(0), 0)
