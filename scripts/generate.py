"""Writes the files that are generated from code: docs/env.md. Decides nothing of their content."""

from __future__ import annotations

from pathlib import Path

from zyfa_triton import env

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    (ROOT / "docs" / "env.md").write_text(env.as_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
