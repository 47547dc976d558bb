"""In which order the persistent workgroups take row tiles.

A few heads at a time, as many as keep every workgroup busy, so that their K and V stay in the L2;
within them the longest tiles first. A workgroup's first tile is its number, each next one is drawn
from a counter, so that none waits until another has finished.
"""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon


def heads_at_once(m_blocks: int, heads: int, workgroups: int) -> int:
    """Heads whose tiles are taken together."""
    return min(heads, -(-workgroups // m_blocks))


@gluon.jit
def tile_of(index, m_blocks, heads, heads_at_once):
    """(row tile, head) of a place in the order; `heads` counts batch entries too."""
    in_group = m_blocks * heads_at_once
    group = index // in_group
    rest = index - group * in_group
    first = group * heads_at_once
    width = gl.minimum(heads_at_once, heads - first)
    row = rest // width
    return m_blocks - 1 - row, first + rest - row * width


@gluon.jit
def key_blocks(
    m_block, seqlen_q, seqlen_k, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, IS_CAUSAL: gl.constexpr
):
    """Blocks of keys that a tile of ROWS positions visits, from the last one to block 0; one for a
    tile that sees no key, which it masks."""
    end = seqlen_k
    if IS_CAUSAL:
        end = gl.minimum((m_block + 1) * ROWS + seqlen_k - seqlen_q, seqlen_k)
    return gl.maximum((end + BLOCK_N - 1) // BLOCK_N, 1)


@gluon.jit
def next_slot(slot, phase, SLOTS: gl.constexpr):
    """The next place of a ring, and the phase of its barriers."""
    slot += 1
    if slot == SLOTS:
        slot = 0
        phase ^= 1
    return slot, phase
