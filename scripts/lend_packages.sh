#!/usr/bin/env bash
# Prints the folders in which an environment finds its packages, one a line, for another's .pth file.
# Folders named in a .pth file come after the environment's own, and .pth files in them are not read:
# what the other environment has itself wins, and an editable install is not lent.
set -euo pipefail
"${1:?usage: lend_packages.sh VENV}/bin/python" - <<'PYTHON'
import sysconfig
from pathlib import Path

import torch

folders = [Path(sysconfig.get_path("purelib")), Path(torch.__file__).resolve().parent.parent]
print("\n".join(dict.fromkeys(str(folder.resolve()) for folder in folders)))
PYTHON
