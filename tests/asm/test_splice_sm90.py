"""A loop of an sm_90a kernel replaced by PTX: what is cut, what goes in, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.asm.splice_sm90_cases import WorkLoop, compile_twice
from zyfa_triton import splice


@pytest.fixture(autouse=True)
def clean(fresh_splice: None) -> Iterator[None]:
    yield


def test_each_copy_of_a_loop_is_replaced_under_names_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZYFA_STRICT", "1")
    loop = splice.use(WorkLoop())
    compiled = compile_twice(loop)
    assert compiled.metadata.splice == loop
    ptx = compiled.asm["ptx"]
    assert re.findall(r"// splice work (\d): begin", ptx) == ["0", "1"]
    assert "scf.for" not in compiled.asm["ttgir"]
