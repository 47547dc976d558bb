#!/usr/bin/env bash
# Compiles and emulates the kernels with the oldest Triton that is supported (3.6).
# Everything but Triton is lent from an existing environment by a .pth file.
set -euo pipefail
cd "$(dirname "$0")/.."
lender=$(cd "${1:?usage: check_oldest_triton.sh VENV}" && pwd)
venv=.venv-triton36

if [ ! -e "$venv/.installed" ]; then
  "$lender/bin/python" -m venv "$venv"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$venv/bin/python" -m pip install -qq --no-deps triton==3.6.0
  bash scripts/lend_packages.sh "$lender" >"$site/lent.pth"
  touch "$venv/.installed"
fi
"$venv/bin/python" -c 'import triton; assert triton.__version__.startswith("3.6"), triton.__version__'
# Machine code differs from version to version: what runs it is what is worth running.
"$venv/bin/python" -m pytest -q tests/asm/test_demo.py tests/asm/test_examples.py \
  tests/asm/test_scaled_product.py tests/asm/test_splice_*.py
