"""The .npz format of captured inputs: what is read back, what is cut, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from zyfa_triton import activations
from zyfa_triton.activations import Activations, ActivationsError

SAMPLE_DIGEST = "0a406cfdc1db94615c007d1a7a04ba7da075a51a12c8545185903133a0d971de"


def grouped(nheads: int = 6, nheads_k: int = 2, seqlen: int = 5) -> Activations:
    return activations.gaussian(seqlen=seqlen, nheads=nheads, nheads_k=nheads_k)


def test_sample_is_the_documented_one() -> None:
    sample = activations.load(activations.SAMPLE)
    assert sample.digest() == SAMPLE_DIGEST
    assert SAMPLE_DIGEST in (activations.SAMPLE.parent / "README.md").read_text()
    assert sample.q.shape == (1, 1024, 2, 128)
    assert sample.k.shape == sample.v.shape == (1, 1024, 1, 128)
    assert sample.softmax_scale == pytest.approx(128**-0.5, rel=1e-7)
    assert sample.layer == 14


def test_saved_file_reads_back_bit_for_bit(tmp_path: Path) -> None:
    made = grouped()
    made.save(tmp_path / "made.npz")
    read = activations.load(tmp_path / "made.npz")
    assert read.digest() == made.digest()
    assert read.name == "made"
    assert read.layer is None
    for name in ("q", "k", "v"):
        assert torch.equal(getattr(read, name), getattr(made, name))


def test_head_axis_is_not_the_token_axis(tmp_path: Path) -> None:
    bits = np.arange(2 * 3 * 128, dtype=np.uint16).reshape(2, 3, 128)
    np.savez(tmp_path / "a.npz", q=bits, k=bits[:1], v=bits[:1], scale=0.5)
    read = activations.load(tmp_path / "a.npz")
    assert read.q.shape == (1, 3, 2, 128)
    assert read.q[0, 2, 1, 7].view(torch.int16).item() == bits[1, 2, 7]
    assert read.softmax_scale == 0.5


def test_cut_keeps_the_key_heads_that_the_query_heads_read() -> None:
    made = grouped()
    one = made.cut(heads=1, seqlen=3)
    assert (one.nheads, one.nheads_k, one.seqlen) == (1, 1, 3)
    assert torch.equal(one.q, made.q[:, :3, :1])
    whole = made.cut(heads=6)
    assert (whole.nheads, whole.nheads_k) == (6, 2)
    group = made.cut(heads=3)
    assert (group.nheads, group.nheads_k) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 4}, "heads: 4 asked for; beyond 3"),
        ({"heads": 0}, "heads: 0 asked for, gaussian128 has 1 to 6"),
        ({"heads": 7}, "heads: 7 asked for"),
        ({"seqlen": 6}, "seqlen: 6 asked for, gaussian128 has 1 to 5"),
        ({"seqlen": 0}, "seqlen: 0 asked for"),
    ],
)
def test_impossible_cuts_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ActivationsError, match=re.escape(message)):
        grouped().cut(**arguments)


def test_missing_file_and_wrong_content_are_named(tmp_path: Path) -> None:
    with pytest.raises(ActivationsError, match="no such file"):
        activations.load(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(ActivationsError, match=r"is not an \.npz file"):
        activations.load(tmp_path / "text.npz")
    np.savez(tmp_path / "lacking.npz", q=np.zeros((1, 2, 128), np.uint16))
    with pytest.raises(ActivationsError, match="lacks k, v, scale"):
        activations.load(tmp_path / "lacking.npz")
    with open(tmp_path / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ActivationsError, match="holds one array"):
        activations.load(tmp_path / "array.npz")


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((3, 4, 128), (2, 4, 128), (2, 4, 128), "cannot share 2 key heads"),
        ((2, 4, 128), (1, 5, 128), (1, 5, 128), "do not belong together"),
        ((2, 4, 128), (1, 4, 128), (2, 4, 128), "do not belong together"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tmp_path: Path, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], message: str
) -> None:
    arrays = {name: np.zeros(shape, np.uint16) for name, shape in (("q", q), ("k", k), ("v", v))}
    np.savez(tmp_path / "a.npz", scale=1.0, **arrays)
    with pytest.raises(ActivationsError, match=message):
        activations.load(tmp_path / "a.npz")


def test_float_arrays_are_refused(tmp_path: Path) -> None:
    values = np.zeros((1, 2, 128), np.float32)
    np.savez(tmp_path / "a.npz", q=values, k=values, v=values, scale=1.0)
    with pytest.raises(ActivationsError, match="q is float32 with 3 axes; uint16"):
        activations.load(tmp_path / "a.npz")


def test_gaussian_inputs_repeat_by_seed_and_have_the_stated_spread() -> None:
    first = activations.gaussian(seqlen=256, headdim=192, seed=1)
    assert first.digest() == activations.gaussian(seqlen=256, headdim=192, seed=1).digest()
    assert first.digest() != activations.gaussian(seqlen=256, headdim=192, seed=2).digest()
    assert first.v.shape[-1] == 128
    scores = torch.einsum("bqhd,bkhd->bhqk", first.q.float(), first.k.float().expand_as(first.q))
    assert (scores * first.softmax_scale).std().item() == pytest.approx(2.0, rel=0.02)
