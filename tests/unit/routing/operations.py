"""How much work something is, whatever machine does it: the bytecodes that run in modules of the product."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PRODUCT = tuple(str(Path(__file__).parents[3] / name) for name in ("broker", "gateway"))


def bytecodes(work: Callable[[], object]) -> int:
    """Count the bytecodes of the product that ``work()`` runs; 0 where its modules are compiled."""
    return _traced(work) if sys.version_info < (3, 12) else _monitored(work)


def _traced(work: Callable[[], object]) -> int:
    count = 0

    def line(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return line

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
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


def _monitored(work: Callable[[], object]) -> int:
    """From Python 3.12 on a trace of opcodes begins only with the second call of a function."""
    watch: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    count = 0

    def instruction(code: CodeType, _offset: int) -> object:
        nonlocal count
        if not code.co_filename.startswith(PRODUCT):
            return watch.DISABLE
        count += 1
        return None

    watch.use_tool_id(watch.PROFILER_ID, __name__)
    watch.register_callback(watch.PROFILER_ID, watch.events.INSTRUCTION, instruction)
    watch.set_events(watch.PROFILER_ID, watch.events.INSTRUCTION)
    try:
        work()
    finally:
        watch.set_events(watch.PROFILER_ID, 0)
        watch.register_callback(watch.PROFILER_ID, watch.events.INSTRUCTION, None)
        watch.free_tool_id(watch.PROFILER_ID)
    return count
