"""How a child process of ours finds our packages, and nothing of the folder that it happens to be started in.

``python -m PACKAGE`` looks into the current directory before anywhere else: whatever is called ``select.py`` there
would run with our rights, and another project's ``broker`` would be taken for ours. ``-P`` leaves that directory out;
where the project runs from its sources, the folder that we ourselves came from is added instead.
"""

from __future__ import annotations

import os
import sys
from typing import Final

HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that our packages stand in: of the sources, or site-packages, which every interpreter knows."""
_BEGIN: Final = (
    "import sys; home = sys.argv.pop(1); home in sys.path or sys.path.insert(0, home); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(module: str) -> tuple[str, ...]:
    """The command line that runs one of our modules as a program; its arguments come behind it."""
    return (sys.executable, "-P", "-c", _BEGIN, HOME, module)


def order(data: bytes) -> int:
    """A file in memory with what a child is told, to be its standard input; the caller closes it.

    Not its arguments nor its environment: everybody on this machine reads those, and there may be secrets in it.
    """
    file = os.memfd_create("order", os.MFD_CLOEXEC)
    renew(file, data)
    return file


def renew(file: int, data: bytes) -> None:
    """Replace what is in such a file; its reader's place is not moved."""
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


def ordered() -> bytes:
    """What this process was told by its input, as it is now; the place in it is not moved."""
    return os.pread(0, os.fstat(0).st_size, 0)
