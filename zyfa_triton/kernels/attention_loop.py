"""Decides the interface of a loop that may take the place of `attention_forward`'s two tile loops.

FP8, head size 128 or 192/128, 256 queries in 8 waves. It does not write the loop: subclass
`AttentionLoop` and write `text`.

What the loop finds (see `marked_bound` in the kernel):

    s24       end         keys [0, end) are visited, the tiles from full_end on need a mask
    s29       full_end    multiple of 64
    s[20:21]  q           first row of this query tile
    s[22:23]  k           first row of this key head
    s[26:27]  v
    s30 s31 s35           row strides of q, k, v in elements, which are bytes; a tile of 256 rows
                          spans less than 2^31 of them, whole tensors may not
    s25       scale_log2  float32: raw score to octaves
    s28       row_0       this tile's first query
    s33 s34               seqlen_q, seqlen_k
    v0        thread number, 0..511

and with head size 192 also where columns 128 to 191 of q and k, the rope part, begin, in the same
rows or in tensors of their own:

    s[36:37]  q_rope      first row of this query tile
    s[38:39]  k_rope      first row of this key head
    s40 s41               their row strides

Query row row_0 + i sees keys j < seqlen_k, when causal also j <= row_0 + i + seqlen_k - seqlen_q.
Rows of q from seqlen_q on and of k, v from seqlen_k on must not be loaded.

What it leaves, for row lane % 32 + 32 * wave in every lane (rows from seqlen_q on may hold
anything, they are not stored):

    v64-v127  acc_o       registers step through the columns 0, 1, 2, 3, 8, ..; lanes 32 up: + 4
    v128      row_max     raw scores; -inf for a row without keys
    v129      row_sum     of rounded P times its scale; 0 for a row without keys

Free: v10-v63, v130-v255, s56-s95, vcc, scc, and LDS from 0. s56 keeps m0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zyfa_triton.splice.gfx950.layout import MatrixLayout
from zyfa_triton.splice.gfx950.recipe import Input, LoopRecipe, Output

TILE_M = 256
TILE_N = 64
HEAD_DIMS = (128, 192)  # of q and k
HEAD_DIM_V = 128
WAVES = 8
LAYOUT = MatrixLayout(waves=(WAVES, 1), instruction=(32, 32, 64), is_transposed=True, version=4)

INPUTS = (
    Input("end", "s24"),
    Input("full_end", "s29"),
    Input("q", "s[20:21]", "pointer"),
    Input("k", "s[22:23]", "pointer"),
    Input("v", "s[26:27]", "pointer"),
    Input("stride_qs", "s30"),
    Input("stride_ks", "s31"),
    Input("stride_vs", "s35"),
    Input("scale_log2", "s25", "f32"),
    Input("row_0", "s28"),
    Input("seqlen_q", "s33"),
    Input("seqlen_k", "s34"),
)
ROPE_INPUTS = (
    Input("q_rope", "s[36:37]", "pointer"),
    Input("k_rope", "s[38:39]", "pointer"),
    Input("stride_qrs", "s40"),
    Input("stride_krs", "s41"),
)
OUTPUTS = (
    Output("row_max", 128, 1, (TILE_M,), float("-inf")),
    Output("row_sum", 129, 1, (TILE_M,), 0.0),
    Output("acc_o", 64, 64, (TILE_M, HEAD_DIM_V), 0.0),
)


def _operations(headdim: int, p_mode: str, is_causal: bool) -> dict[str, int]:
    """What tells the block-scaled loops of `attention_forward` from one another.

    Full and masked tile together: scores of 128 columns, those of the rope part, P V and row sum
    are a dot each.
    """
    exact = p_mode == "exact"
    return {
        "tt.dot": 6 if headdim == 128 else 8,
        "tt.reduce": 4,
        "math.fma": 6,
        "math.exp2": 4 if exact else 2,
        "math.floor": 0 if exact else 2,
        "arith.andi": int(is_causal),
    }


@dataclass(frozen=True, kw_only=True)
class AttentionLoop(LoopRecipe):
    """Recipe in place of both tile loops, block scaling on.

    p_mode: "lean" or "exact". headdim: of q and k, see HEAD_DIMS.
    """

    p_mode: str
    is_causal: bool
    headdim: int = HEAD_DIMS[0]
    inputs: tuple[Input, ...] = field(init=False)
    outputs: tuple[Output, ...] = OUTPUTS
    clobbers: tuple[str, ...] = ("v[10:63]", "v[130:255]", "s[56:95]")
    operations: Mapping[str, int] = field(init=False)
    step: int | None = TILE_N
    saves: Mapping[str, str] = field(default_factory=lambda: {"m0": "s56"})
    options: Mapping[str, int] = field(
        default_factory=lambda: {"num_stages": 1, "matrix_instr_nonkdim": 32, "waves_per_eu": 2}
    )

    def __post_init__(self) -> None:
        if self.p_mode not in ("lean", "exact"):
            raise ValueError(f"p_mode: got {self.p_mode!r}; accepted are 'lean' and 'exact'")
        if self.headdim not in HEAD_DIMS:
            accepted = ", ".join(map(str, HEAD_DIMS))
            raise ValueError(f"headdim: got {self.headdim}; accepted are {accepted}")
        object.__setattr__(self, "inputs", INPUTS + (ROPE_INPUTS if self.headdim > 128 else ()))
        operations = _operations(self.headdim, self.p_mode, self.is_causal)
        object.__setattr__(self, "operations", operations)
        super().__post_init__()
