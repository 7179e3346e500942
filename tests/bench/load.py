"""How busy the machine is with what others do: said before and after every run, and a reason not to publish.

Before a run the load of the last minute is that of others; after it, it is mostly our own. Ratios within a run take
much of it out, but not all: whoever has more processes loses more. So documents get their tables from quiet machines.
"""

import os
import sys
from time import monotonic, sleep

QUIET = 1.0
"""The load of one minute up to which figures are published."""
WAIT_S = 180.0
"""What a load of a few minutes, such as that of building the wheel, needs to fade out of the average."""
LOOK_S = 5.0


class Busy(Exception):
    """The machine did not become quiet."""


def reading() -> float:
    """The average number of threads that ran or waited to run in the last minute."""
    return os.getloadavg()[0]


def say(when: str, value: float) -> None:
    """Print one reading, whatever is done with it."""
    print(f"load of the machine, 1 minute, {when}: {value:.2f}", file=sys.stderr, flush=True)


def await_quiet(wait_s: float) -> float:
    """Wait for a load that is not above ``QUIET``, and return it.

    Raises:
        Busy: it stayed above that for ``wait_s``.
    """
    value, until = reading(), monotonic() + wait_s
    if value > QUIET and wait_s:
        say(f"waiting up to {wait_s:.0f} s for {QUIET:g} or less", value)
    while value > QUIET:
        if monotonic() >= until:
            raise Busy(
                f"the load of the machine is {value:.2f}: above {QUIET:g} no table is written into a document. "
                "Nothing was measured; run it when the machine is quiet, wait longer (--wait SECONDS), leave out "
                "--page, or publish all the same (--any-load)"
            )
        sleep(LOOK_S)
        value = reading()
    return value
