"""How racecheck's reports are read: which functions a race is between, and whether it is known."""

from __future__ import annotations

from pathlib import Path

from tests.gpu import races

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


def test_only_known_pairs_pass() -> None:
    tell, say = ("producer.py", "_tell"), ("producer.py", "_told")
    known = frozenset({tell, say})
    found = races.races("")
    assert not races.unknown(found)
    found[known] += 3
    assert not races.unknown(found)
    found[frozenset({tell, ("consumer.py", "_store")})] += 2
    assert races.unknown(found) == ["consumer.py _store and producer.py _tell: 2"]


def test_what_is_known_exists() -> None:
    """Functions that are renamed, or cease to be, take their exceptions with them."""
    for pair in (*races.KNOWN, races.CONTROL):
        for file, function in pair:
            text = next(path / file for path in races.SOURCES if (path / file).is_file())
            assert f"def {function}(" in text.read_text(encoding="utf-8")
