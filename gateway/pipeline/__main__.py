"""``spark-submit $(python -m gateway.pipeline --path) VERB ...``, or ``python -m gateway.pipeline VERB ...``: as
``headgate pipeline``.

Master, memory and the like are then ``spark-submit``'s; ``--master`` of the verb is left out. On workers this package
must be importable: installed, or a wheel given to ``--py-files``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run a verb; returns the exit code."""
    if argv == ["--path"]:
        print(Path(__file__).absolute())  # noqa: T201 - what spark-submit wants to be told
        return 0
    # by name: the command line stands above this package, which must not lean on it
    code: int = import_module("broker.cli.main").main(["pipeline", *argv])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
