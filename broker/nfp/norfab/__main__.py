"""Runs a script that was written for NorFab as it is: ``python -m broker.nfp.norfab SCRIPT.py [ARGUMENT]...``."""

from __future__ import annotations

import os
import runpy
import sys
from types import ModuleType

from broker.nfp import norfab


def stand_in() -> None:
    """Let ``norfab.core.nfapi`` and ``norfab.core.client`` be the adapter."""
    for name in ("norfab", "norfab.core", "norfab.core.nfapi", "norfab.core.client"):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = []
        module.__dict__.update({each: getattr(norfab, each) for each in norfab.__all__})


def main(argv: list[str]) -> None:
    """Run the script ``argv[0]`` with the arguments behind it."""
    if not argv or argv[0] in ("-h", "--help"):
        sys.exit("usage: python -m broker.nfp.norfab SCRIPT.py [ARGUMENT]...")
    stand_in()
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
