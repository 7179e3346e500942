"""What a task brings, in the form deployed NorFab's clients read, and the timestamps they show."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

from broker.nfp import bodies
from broker.nfp.client.errors import FetchFailed
from broker.nfp.worker.models import InvalidInput
from broker.safe_text import about, text, texts

if TYPE_CHECKING:
    from broker.nfp.worker.context import TaskContext

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


ERROR_TEXT_CHARS: Final = 16_000
"""A traceback is cut to its last so many characters."""
_TEXTS: Final = ("task", "juuid", "service", "status", "task_started", "task_completed")


class Result(msgspec.Struct, kw_only=True, gc=False):
    """The result of one task on one worker; a task may return one, else what it returns becomes ``result``.

    Attributes:
        result: anything JSON can say. failed: True when the task did not do what was asked. errors: why.
        task: ``WORKER:TASK``. messages: for people. juuid: the job. resources: names of what the task worked on;
        resources_failed: those of them it failed on. status: completed, created, updated, unchanged, skipped, no_match,
        failed, error or timeout. task_started, task_completed: local
        time. diff: what changed. dry_run: True when nothing was changed on purpose.
    """

    result: Any = None
    failed: bool = False
    errors: list[str] = []
    task: str | None = None
    messages: list[str] = []
    juuid: str | None = None
    resources: list[str] = []
    resources_failed: list[str] = []
    status: str | None = None
    task_started: str | None = None
    task_completed: str | None = None
    service: str | None = None
    diff: Any = None
    dry_run: bool = False


def encode(worker: str, result: Result) -> bytes:
    """The body of the final RESPONSE: ``{worker: result}``.

    A result that JSON cannot say becomes a failed one which tells so.
    """
    try:
        return bodies.encode({worker: result})
    except BaseException as error:  # whatever a value does when it is looked at
        lean = Result(
            failed=True, status="error", errors=texts(result.errors), messages=texts(result.messages)
        )
        lean.errors.append(f"the result cannot be written as JSON: {text(error)}")
        for name in _TEXTS:
            if name != "status":
                value = getattr(result, name)
                setattr(lean, name, text(value) if isinstance(value, str) else None)
        return bodies.encode({worker: lean})


def failure(error: BaseException, said: str, status: str = "error") -> Result:
    """The result of a task that did not bring one, but ``error``, of which ``said`` tells."""
    return Result(failed=True, status=status, errors=[text(said)], messages=[about(error)])


def normalise(result: Result) -> Result:
    """``result`` with texts, lists of them and truth values where these belong."""
    for name in ("errors", "messages", "resources", "resources_failed"):
        setattr(result, name, texts(getattr(result, name)))
    for name in _TEXTS:
        value = getattr(result, name)
        setattr(result, name, None if value is None else text(value))
    result.failed, result.dry_run = bool(result.failed), bool(result.dry_run)
    return result


def with_context(result: Result, context: TaskContext) -> Result:
    """``result`` with what the task left in its context."""
    result.resources += texts(context.resources)
    result.resources_failed += texts(context.resources_failed)
    result.messages += texts(context.messages)
    if errors := texts(context.errors):
        result.failed = True
        result.errors += errors
    if result.diff is None:
        result.diff = context.diff
    result.dry_run = result.dry_run or bool(context.dry_run)
    return result


def trace_of(error: BaseException) -> str:
    """The traceback, from the task's own function on; of a task that did not begin, what was missing."""
    if isinstance(error, FetchFailed | InvalidInput):
        return text(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    try:
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    except BaseException:  # it has been given attributes that no exception of its kind has
        lines = [*traceback.format_tb(trace or error.__traceback__), about(error)]
    return "".join(lines)[-ERROR_TEXT_CHARS:]


def event_time() -> str:
    """Now as events carry it: ``dd-Mon-YYYY HH:MM:SS.mmm``, local time, English in every locale."""
    now = time.time()
    at = time.localtime(now)
    return (
        f"{at.tm_mday:02d}-{_MONTHS[at.tm_mon - 1]}-{at.tm_year} "
        f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}.{int(now * 1000) % 1000:03d}"
    )
