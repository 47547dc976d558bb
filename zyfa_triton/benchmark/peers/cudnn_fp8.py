"""cuDNN's FP8 attention through nvidia-cudnn-frontend (the module is called cudnn).

Its output on Hopper is e4m3. The scale of the output comes from one untimed run that reads the
largest output, as delayed scaling does in training; P is multiplied with 2^8. Inputs, descales and
quantising are those of the other FP8 paths.
"""

from __future__ import annotations

from typing import Any

import torch

from zyfa_triton import quantize_fp8
from zyfa_triton.benchmark.gate import P_SCALE, Output
from zyfa_triton.benchmark.inputs import Problem, Tensors
from zyfa_triton.benchmark.peers import Call, Path
from zyfa_triton.benchmark.peers.requirements import first_line, imported, no_card
from zyfa_triton.problem import FP8

E4M3_MAX = 448.0
_SCALARS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")


class _Plan:
    """One compiled graph for a shape, for (batch, seqlen, heads, headdim) in memory."""

    def __init__(self, cudnn: Any, problem: Problem) -> None:
        self.cudnn = cudnn
        self.handle = cudnn.create_handle()
        shape, device = problem.shape, problem.device
        f8, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            io_data_type=f8,
            intermediate_data_type=f32,
            compute_data_type=f32,
            handle=self.handle,
        )

        def tensor(name: str, heads: int, size: int) -> Any:
            return self.graph.tensor(
                name=name,
                dim=[shape.batch, heads, shape.seqlen, size],
                stride=[shape.seqlen * heads * size, size, heads * size, 1],
                data_type=f8,
            )

        self.inputs = (
            tensor("q", shape.nheads, shape.headdim),
            tensor("k", shape.nheads_k, shape.headdim),
            tensor("v", shape.nheads_k, shape.headdim_v),
        )
        self.scalars = {
            name: self.graph.tensor(name=name, dim=[1] * 4, stride=[1] * 4, data_type=f32)
            for name in _SCALARS
        }
        q, k, v = self.inputs
        self.out, _, *self.amax = self.graph.sdpa_fp8(
            q=q,
            k=k,
            v=v,
            **self.scalars,
            attn_scale=problem.softmax_scale,
            use_causal_mask=shape.causal,
            generate_stats=False,
            name="attention",
        )
        self.out_shape = (shape.batch, shape.seqlen, shape.nheads, shape.headdim_v)
        heads_width = shape.nheads * shape.headdim_v
        self.out.set_output(True).set_data_type(f8).set_dim(
            [shape.batch, shape.nheads, shape.seqlen, shape.headdim_v]
        ).set_stride([shape.seqlen * heads_width, shape.headdim_v, heads_width, 1])
        for amax in self.amax:
            amax.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(f32)
        self.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        size = max(1, self.graph.get_workspace_size())
        self.workspace = torch.empty(size, dtype=torch.uint8, device=device)
        self.amax_values = [torch.zeros(1, 1, 1, 1, device=device) for _ in self.amax]
        self.scale_s = torch.full((1, 1, 1, 1), P_SCALE, device=device)
        self.descale_s = 1.0 / self.scale_s
        self.scale_o = torch.ones(1, 1, 1, 1, device=device)

    def __call__(self, codes: Any, descales: Any) -> torch.Tensor:
        """The codes of the output, (batch, seqlen, nheads, headdim_v)."""
        out = torch.empty(self.out_shape, dtype=FP8, device=self.workspace.device)
        scales = [one.flatten()[:1].view(1, 1, 1, 1) for one in descales]
        scales += [self.descale_s, self.scale_s, self.scale_o]
        values = dict(zip(self.inputs, codes, strict=True))
        values |= dict(zip(self.scalars.values(), scales, strict=True))
        values |= dict(zip(self.amax, self.amax_values, strict=True))
        values[self.out] = out
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute(values, self.workspace, handle=self.handle)
        return out

    def calibrate(self, codes: Any, descales: Any) -> float:
        """Sets the output's scale so that the largest output becomes 448; returns the descale."""
        self(codes, descales)
        largest = float(self.amax_values[-1])
        self.scale_o.fill_(E4M3_MAX / largest if largest > 0 else 1.0)
        return 1.0 / float(self.scale_o)


def _setup(problem: Problem) -> Call | str:
    cudnn = imported("cudnn")
    if isinstance(cudnn, str):
        return cudnn.replace("cudnn is", "nvidia-cudnn-frontend is")
    missing = no_card(problem, "nvidia")
    if missing:
        return missing
    first = problem.sets[0]
    try:
        plan = _Plan(cudnn, problem)
        descale = plan.calibrate(first.codes(), first.descales().values())
    except Exception as error:  # its exceptions derive from several bases
        return f"cuDNN {cudnn.backend_version_string()} refuses: {first_line(error)}"

    def call(tensors: Tensors) -> Output:
        if not problem.case.quantise:
            return Output(plan(tensors.codes(), tensors.descales().values()), descale)
        nheads_k = problem.shape.nheads_k
        pairs = [
            quantize_fp8(tensors.q, "tensor", nheads_k=nheads_k)[:2],
            quantize_fp8(tensors.k, "tensor")[:2],
            quantize_fp8(tensors.v, "tensor")[:2],
        ]
        return Output(plan([one[0] for one in pairs], [one[1] for one in pairs]), descale)

    return call


PATHS = (Path("cudnn-fp8", "fp8", _setup),)
