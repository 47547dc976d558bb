"""`python -m zyfa_triton` is `zyfa`. Decides nothing."""

import sys

from zyfa_triton.cli import main

if __name__ == "__main__":
    sys.exit(main())
