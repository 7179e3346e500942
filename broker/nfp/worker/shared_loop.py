"""The event loop that all jobs of a worker share: what one task does to it must not be the end of the others.

A task may end itself, not the worker: asyncio lets ``SystemExit`` and ``KeyboardInterrupt`` of any of its tasks through
to whoever runs the loop, so one ``sys.exit()`` in a ``TaskGroup`` or a ``gather`` of one job would end all jobs.

A task that calls what blocks stops everything that the loop does. A thread sees it, says which task and where, and
keeps the heartbeat: without a sign of life the broker would give the worker up and its jobs to others, so that what may
run twice would, although nobody is gone. That holds for the time of the job: a loop that is blocked longer may never go
on, and others are to have the worker's jobs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from broker.safe_text import about

if TYPE_CHECKING:
    from broker.nfp.worker.session import Session

log = logging.getLogger("headgate")
LOOK_S: Final = 1.0
"""Between two looks, and between two signs of the loop."""
BLOCKED_S: Final = 2.0
"""A loop without a sign for so long is blocked."""
_NOT_THEIRS: Final = ("asyncio", "broker")
_in_job: ContextVar[bool] = ContextVar("in_job", default=False)


def enter_job() -> None:
    """The running asyncio task is a job's: so is what it starts."""
    _in_job.set(True)


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """Have ``loop`` make such an end an error of the job, for good; harmless twice."""
    before: Any = loop.get_task_factory()
    if getattr(before, "contains", False):
        return

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        if _in_job.get() and asyncio.iscoroutine(coro):
            coro = _contained(coro)
        return asyncio.Task(coro, loop=loop, **options) if before is None else before(loop, coro, **options)

    factory.contains = True  # type: ignore[attr-defined]
    loop.set_task_factory(factory)


async def _contained(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the task raised {about(error)}") from error


class LoopWatch:
    """Of one worker and the running loop, whose thread makes it.

    Args:
        session: the worker's; it says in the thread that it is there, with each look at a blocked loop.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._ended = threading.Event()
        self._seen = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._sign()
        name = f"loop of {self._session.worker}"
        threading.Thread(target=self._watch, name=name, daemon=True).start()

    def stop(self) -> None:
        """Watch no more. Harmless twice, and before the start."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _sign(self) -> None:
        self._seen = time.monotonic()
        self._timer = self._loop.call_later(LOOK_S, self._sign)

    def _watch(self) -> None:
        name, looked, told, over = self._session.worker, time.monotonic(), False, False
        while not self._ended.wait(LOOK_S):
            before, looked = looked, time.monotonic()
            if looked - before > LOOK_S + BLOCKED_S:
                self._seen = looked  # the whole process was stopped, its loop has had no chance
            blocked_s = looked - self._seen
            if blocked_s < BLOCKED_S:
                if told:
                    log.warning("%s: the event loop goes on", name)
                told = over = False
                continue
            try:
                running = tuple(self._session.running.values())
                task = asyncio.current_task(self._loop)
                own = [job for job in running if task is not None and job.running is task]
                if not over and max((job.left_s for job in own or running), default=-1.0) > 0:
                    self._session.beat_from_thread()
                elif not over:
                    over = True
                    log.error(
                        "%s: the event loop is still blocked, and its time is over: no sign of life", name
                    )
                if not told:
                    told = True
                    who = f"task {own[0].task} of job {own[0].uuid}" if own else "what runs in it"
                    what = "%s: the event loop is blocked for %.1f s by %s: an ordinary function would run in a thread"
                    log.warning(what, name, blocked_s, ", ".join((who, *self._places())))
            except Exception:
                log.exception("%s: the event loop is blocked", name)

    def _places(self) -> list[str]:
        """Where in their own code the loop's thread is: the outermost line and the innermost."""
        frame = sys._current_frames().get(self._thread_id)
        theirs: list[FrameType] = []
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THEIRS:
            theirs.append(frame)
            frame = frame.f_back
        places = [theirs[-1], theirs[0]] if len(theirs) > 1 else theirs
        return [f"{each.f_code.co_filename}:{each.f_lineno} ({each.f_code.co_name})" for each in places]
