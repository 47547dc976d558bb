"""Attention beside its peers, from a checkout: `zyfa bench`, which has the arguments.

python bench/attention.py --suite headline --json rows.json --png speed.png
"""

from __future__ import annotations

import sys

from zyfa_triton.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
