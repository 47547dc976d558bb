#!/usr/bin/env bash
# Fills a virtual environment with the package (editable) and its development tools.
# An installed torch is kept: it fits the machine's GPU. Only where there is none, and the machine
# shows no GPU, the CPU build is taken, never the CUDA build of several GB that plain pip would pick.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: setup_venv.sh FOLDER [PIP_ARGUMENT...]}
shift
python=${PYTHON:-python3}
torch_version=${TORCH_VERSION:-2.13.0}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "error: $("$python" --version) is too old; Python 3.10 or later is needed (make PYTHON=python3.12 ...)" >&2
  exit 2
}
if "$python" -c 'import torch' 2>/dev/null; then
  "$python" -m venv --system-site-packages "$venv"
else
  "$python" -m venv "$venv"
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  if command -v nvidia-smi >/dev/null 2>&1 || command -v rocm-smi >/dev/null 2>&1; then
    echo "error: this machine has a GPU but no torch; install the build that fits it, then run this again" >&2
    exit 2
  fi
  # A configured index or folder may hold the CPU build under its local version; else PyTorch's own index.
  pip install -qq "torch==${torch_version}+cpu" 2>/dev/null ||
    pip install -qq "torch==${torch_version}" --index-url https://download.pytorch.org/whl/cpu
fi
pip install -qq --editable '.[dev]' "$@"
"$venv/bin/python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
