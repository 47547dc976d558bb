"""Documents say what is: paths exist, commands parse, links lead somewhere, examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from zyfa_triton import env, language
from zyfa_triton.cli import COMMANDS, build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "zyfa_triton").rglob("*.md")]
)
TOP = ("zyfa_triton", "asm_overrides", "tests", "docs", "bench", "examples", "scripts", ".ci")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pieces_of_code(text: str) -> list[str]:
    """Inline code, and the lines of shell blocks without their comments."""
    blocks = [body for kind, body in FENCE.findall(text) if kind in ("sh", "bash")]
    lines = [line.split("#")[0].strip() for body in blocks for line in body.splitlines()]
    return [*CODE.findall(FENCE.sub("", text)), *filter(None, lines)]


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def test_there_are_pages_with_code() -> None:
    names = {page_id(path) for path in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "docs/how-it-works.md", "docs/accuracy.md"} <= names
    assert sum(len(pieces_of_code(path.read_text())) for path in PAGES) > 100


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_to_files(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{page_id(path)} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_paths_exist(path: Path) -> None:
    for code in pieces_of_code(path.read_text(encoding="utf-8")):
        for word in code.split():
            if word.split("/")[0] in TOP and "/" in word:
                assert (ROOT / word).exists(), f"{page_id(path)} names {word}"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_commands_parse(path: Path) -> None:
    targets = make_targets()
    for code in pieces_of_code(path.read_text(encoding="utf-8")):
        words = shlex.split(code) if re.match(r"(zyfa|make|python) ", code) else [""]
        if words[0] == "zyfa" and len(words) == 2:  # a command by its name alone
            assert words[1] in COMMANDS, f"{page_id(path)}: {code}"
        elif words[0] == "zyfa":
            build_parser().parse_args(words[1:])  # SystemExit where it does not parse
        elif words[0] == "make":
            named = [word for word in words[1:] if "=" not in word]
            assert named and set(named) <= targets, f"{page_id(path)}: {code}"
        elif words[0] == "python" and words[1] == "-m" and words[2].startswith("bench."):
            assert ROOT.joinpath(*words[2].split(".")).with_suffix(".py").is_file(), code
        elif words[0] == "python" and words[1] == "-m":
            is_example = (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
            assert is_example or words[2] in ("zyfa_triton", "zyfa_triton.tuning", "pytest"), (
                f"{page_id(path)}: {code}"
            )
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), f"{page_id(path)}: {code}"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_modules_and_their_names_exist(path: Path) -> None:
    for code in CODE.findall(path.read_text(encoding="utf-8")):
        if not re.fullmatch(r"(zyfa_triton|asm_overrides)(\.\w+)+", code):
            continue
        parts = code.split(".")
        module = ROOT.joinpath(*parts)
        if module.with_suffix(".py").exists() or module.is_dir():
            continue
        source = ROOT.joinpath(*parts[:-1])
        text = (
            source.with_suffix(".py")
            if source.with_suffix(".py").exists()
            else source / "__init__.py"
        ).read_text(encoding="utf-8")
        assert re.search(rf"\b{parts[-1]}\b", text), f"{page_id(path)} names {code}"


def test_readme_leads_to_every_document() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    for path in (ROOT / "docs").glob("*.md"):
        assert page_id(path) in linked, f"README.md does not link {page_id(path)}"


def test_environment_page_is_generated() -> None:
    written = (ROOT / "docs" / "env.md").read_text(encoding="utf-8")
    assert written == env.as_markdown(), "run `make asm-check`"


def test_readme_code_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = [body for kind, body in FENCE.findall(text) if kind == "python"]
    names: dict[str, object] = {}
    exec(compile(code.replace("1000", "70"), "README.md", "exec"), names)
    assert tuple(names["out"].shape) == (1, 70, 12, 128)  # type: ignore[attr-defined]


def test_every_building_block_is_in_the_table() -> None:
    text = (ROOT / "docs" / "writing-a-variant.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    blocks = {
        name
        for name, value in vars(language).items()
        if type(value).__name__ in ("JITFunction", "InterpretedFunction")
        and not name.startswith("_")
    }
    assert len(blocks) > 10
    missing = blocks - named - {"not_above"}  # a detail of the two row offsets
    assert not missing, f"docs/writing-a-variant.md does not name {sorted(missing)}"


def test_no_machine_paths() -> None:
    place = re.compile(r"(?<![\w.])/(home|root|tmp|work|Users)/")
    for path in [*PAGES, ROOT / "Makefile", *(ROOT / "scripts").glob("*.*")]:
        found = place.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{page_id(path)}: {found}"
