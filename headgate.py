"""The console script ``headgate``: makes sure that ``broker`` and ``gateway`` are Headgate's, then runs the verb.

Other distributions have packages of these names. Installed into the same environment they write over ours without a
word, so this module stands beside both and needs neither: ``python -m headgate`` is the same.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

PACKAGES: Final = ("broker", "gateway")
OURS: Final = "headgate "
"""How the name of our distribution begins, with a version behind it."""
ADVICE: Final = "install Headgate into an environment of its own"
NEW_LINE: Final = "\n"
CONFIG: Final = 78
"""Exit code: what is installed is wrong (sysexits.h, EX_CONFIG)."""


def main() -> int:
    """Run the verb that the words of the command name, and return the exit code."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, end)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's "&" ignores it
    if interruptible:
        signal.signal(signal.SIGINT, end)  # no traceback of modules that load
    if said := intruder():
        print(f"headgate: {said}; {ADVICE}", file=sys.stderr)
        return CONFIG
    run = import_module("broker.cli.main").main
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code: int = run()
    keep(code, [signal.SIGTERM, *([signal.SIGINT] if interruptible else [])])
    return code


def keep(code: int, numbers: Sequence[int]) -> None:
    """The verb has ended with ``code``: one of the signals ``numbers`` that comes while threads and modules are left
    behind, too late to be taken over by a loop, changes nothing about that. A supervisor would take 143 for a failure,
    a person a traceback.
    """
    for number in numbers:
        signal.signal(number, lambda _number, _frame: os._exit(code))
        # handlers in Python end before the process does
        atexit.register(signal.signal, number, signal.SIG_IGN)


def end(number: int, _frame: object) -> None:
    """What SIGTERM does by default: end at once, with exit code 128 + ``number``.

    The first process of a container (PID 1) ignores a signal that it does not handle, so one that came while modules
    load would be lost. A verb that has something to finish takes the signal over once it has begun. SIGINT, of which
    Python makes a KeyboardInterrupt wherever it stands, ends every process so while modules load.
    """
    os._exit(128 + number)


def intruder() -> str:
    """Which of our packages is missing or not ours, and whose it is; "" when all is well."""
    for name in PACKAGES:
        try:
            found = import_module(name)
        except Exception as error:  # whatever somebody else's package does when it is imported
            why = f"{type(error).__name__}: {str(error).partition(NEW_LINE)[0]}"
            return f"the package {name} cannot be imported ({why}){_whose(name)}"
        if getattr(found, "__distribution__", None) != "headgate":
            place = found.__file__ or ", ".join(found.__path__)
            return f"the package {name} at {place} is not Headgate's{_whose(name)}"
    return ""


def _whose(name: str) -> str:
    brought = owners(name)
    return f", but of {' and '.join(brought)}" if brought else ""


def owners(name: str) -> list[str]:
    """The other distributions in this environment that bring a package ``name``, with their versions."""
    from importlib import metadata  # late: it costs more than all that is imported before a verb

    found = set()
    for each in metadata.distributions():
        listed = (each.read_text("RECORD") or "").splitlines()
        whole = (each.read_text("top_level.txt") or "").split()
        if name in whole or any(line.startswith((f"{name}/", f"{name}.py,")) for line in listed):
            found.add(f"{each.metadata['Name']} {each.version}")
    return sorted(each for each in found if not each.startswith(OURS))


if __name__ == "__main__":
    sys.exit(main())
