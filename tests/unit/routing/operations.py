"""How much work something is, whatever machine does it: the bytecodes that run in modules of the product."""

import sys
from collections.abc import Callable
from pathlib import Path

PRODUCT = tuple(str(Path(__file__).parents[3] / name) for name in ("broker", "gateway"))


def bytecodes(work: Callable[[], object]) -> int:
    """Count the bytecodes of the product that ``work()`` runs; 0 where its modules are compiled."""
    count = 0

    def line(_frame, event, _arg):
        nonlocal count
        count += event == "opcode"
        return line

    def call(frame, _event, _arg):
        if not frame.f_code.co_filename.startswith(PRODUCT):
            return None
        frame.f_trace_opcodes = True
        return line

    former = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    finally:
        sys.settrace(former)
    return count
