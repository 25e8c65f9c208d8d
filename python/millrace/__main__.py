"""`python -m millrace` and `millrace`: the command line tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program `millrace`, with the arguments of this one."""
    program = Path(__file__).parent / "bin" / "millrace"
    os.execv(program, ["millrace", *sys.argv[1:]])


if __name__ == "__main__":
    main()
