"""``python -m tests.deploy``: every checker over everything in ``Dockerfile`` and ``deploy/``."""

import sys
import time

from tests.deploy import checks


def main() -> int:
    """Print a line for each check and what it complains of; 1 when there is a complaint, or a checker is missing that
    could be there.
    """
    bad = 0
    for name, check in checks.everything():
        began = time.monotonic()
        try:
            complaints = check()
            word = "bad" if complaints else "ok"
        except checks.Missing as missing:
            complaints = [str(missing)]
            word = "skip" if str(missing).startswith("optional:") else "bad"
        bad += word == "bad"
        print(f"{word:<4} {time.monotonic() - began:5.2f} s  {name}", flush=True)
        for line in complaints:
            print(f"               {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
