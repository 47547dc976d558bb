"""How racecheck's reports are read, and what its view of a kernel's start adds to the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import race_start, races

SOURCE = '''"""A kernel."""

@jit
def told(tiles):
    return tiles.load()


def start():
    def inner():
        pass
    inner()
'''
REPORT = """========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at kernel+0x100 in one.py:5
=========     and Write access at kernel+0x8fe0 in one.py:10 [16 hazards]
=========     and Write access at kernel+0xf790 in other.py:126 [6 hazards]
=========
.========= Warning: Race reported between Write access at kernel+0x7890
=========     and Read access at kernel+0x230 in one.py:3 [4 hazards]
=========
1 passed
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""


def test_races_are_named_by_the_functions_that_they_are_between(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE, encoding="utf-8")
    told, start = ("one.py", "told"), ("one.py", "start")
    assert races.races(REPORT, [tmp_path]) == {
        frozenset({told, start}): 1,
        frozenset({told, ("other.py", "line 126")}): 1,
        frozenset({("?", "line 0"), told}): 1,
    }


KERNEL = """.entry kernel
	setmaxnreg.inc.sync.aligned.u32 	240;
	st.shared.v2.b32 	[global_smem+64], {0, 1};
	.loc	1 47 4
$L__tmp1:
	barrier.sync 	1;
	st.shared.b32 	[global_smem+128], %r1;
	ld.shared.b32 	%r2, [global_smem+128];
	barrier.sync 	1;
	st.shared.b32 	[global_smem+64], 2;
	barrier.sync 	1;
	ret;
"""


def test_writers_meet_only_where_partitions_are_told() -> None:
    lines = race_start.writers_meet(KERNEL).splitlines()
    added = [number for number, line in enumerate(lines) if line == "\tbar.sync \t0, 128;"]
    told = [lines[number - 1].split()[0] for number in added]
    assert told == ["st.shared.v2.b32", "st.shared.b32"]
    kept = [line for number, line in enumerate(lines) if number not in added]
    assert kept == KERNEL.splitlines()


def test_a_kernel_without_partitions_stays_and_an_unknown_start_is_refused() -> None:
    plain = KERNEL.replace("setmaxnreg", "nop").replace("barrier.sync", "bar.sync")
    assert race_start.writers_meet(plain) == plain
    with pytest.raises(ValueError, match="told 0 times"):
        race_start.writers_meet(KERNEL.replace("barrier.sync", "bar.sync"))
