#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment far from the checkout and works with it there.
# torch and Triton are lent from an existing environment by a .pth file: they are not what is tested.
set -euo pipefail
cd "$(dirname "$0")/.."
lender=$(cd "${1:?usage: check_wheel.sh VENV}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$lender/bin/python" -m build --wheel --outdir "$work/dist" . >"$work/build.log" 2>&1 || {
  cat "$work/build.log" >&2
  exit 1
}
"$lender/bin/python" -m venv "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$work/venv/bin/python" -m pip install -qq --no-deps "$work"/dist/*.whl
bash scripts/lend_packages.sh "$lender" >"$site/lent.pth"

cd "$work"
"$work/venv/bin/python" - "$site" <<'PYTHON'
import sys
from pathlib import Path

import asm_overrides
import zyfa_triton

site = Path(sys.argv[1]).resolve()
for package in (zyfa_triton, asm_overrides):
    where = Path(package.__file__).resolve()
    assert site in where.parents, f"{package.__name__} comes from {where}, not from the wheel"
PYTHON
"$work/venv/bin/zyfa" doctor
"$work/venv/bin/zyfa" compile --dtype fp8 --p-mode lean -o "$work/out"
ZYFA_CACHE_DIR="$work/cache" "$work/venv/bin/zyfa" compile --dtype bf16 --kernel hip -o "$work/out"
"$work/venv/bin/zyfa" check "$work/out"/*.amdgcn "$work/out"/*.hsaco
"$work/venv/bin/zyfa" demo --seqlen 256 --heads 1 -o "$work/demo"
test -s "$work/demo/demo.png"
"$work/venv/bin/zyfa" run --seqlen 256 --heads 1 --backend emulated --json "$work/rows.json"
"$work/venv/bin/python" - "$work/rows.json" <<'PYTHON'
import json
import sys

(row,) = json.load(open(sys.argv[1]))
assert row["matches_contract"]["p_codes_equal"] is True, row
assert row["findings"] == [], row
PYTHON
echo "the installed wheel compiles, checks and runs its kernel"
