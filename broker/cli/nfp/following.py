"""One job on the screen while it runs: a line for each worker on a terminal, a line for each event elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from broker.cli.content import value_of
from broker.cli.exits import FAILED, INTERRUPTED, OK
from broker.cli.nfp.session import short
from broker.cli.screen import Screen, compact
from broker.errors import print_error
from broker.nfp.outcome import DONE, result_state
from broker.safe_text import one_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from broker.nfp.client import Event, Job

QUIET: Final = frozenset({"result_ready", "input_response"})
"""Kinds of events that say nothing to a person."""


class Choice(Enum):
    """What to do with a job after Ctrl-C."""

    CANCEL = "c"
    DETACH = "d"
    WAIT = "w"


class JobDisplay:
    """Progress of one job, for the time of a ``with`` block.

    Args:
        screen: the verb's; with ``--json`` events are JSON lines. job: which one.
        shown: False draws and says nothing.
    """

    def __init__(self, screen: Screen, job: Job, shown: bool) -> None:
        self._screen = screen
        self._job = job
        self._shown = shown
        self._progress: Progress | None = None
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._shown and self._screen.rich:
            self._progress = _progress(self._screen)
            self._progress.start()
            self._line("", "waits")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Give the terminal to a question."""
        if self._progress is not None:
            self._progress.stop()
        try:
            yield
        finally:
            if self._progress is not None:
                self._progress.start()

    def note(self, text: str) -> None:
        """Tell it beside the results."""
        self._screen.note("nfp run", text)

    def show(self, event: Event) -> None:
        """Draw what happened."""
        if not self._shown or event.kind in QUIET:
            return
        if self._screen.as_json:
            self._screen.line(
                compact({"event": event.kind, "worker": event.worker, "message": event.message})
            )
        elif self._progress is not None:
            self._draw(event)
        else:
            text = f"{event.worker or '-'}: {event.kind} {event.message}".rstrip()
            print_error(one_line(text))

    def _draw(self, event: Event) -> None:
        assert self._progress is not None
        for worker in self._job.workers:
            self._line(worker, "")
        if event.worker:
            self._line(event.worker, event.message or event.kind, done=event.kind in ("finished", "failed"))
            _advance(self._progress, self._lines[event.worker], event)
        else:
            self._line("", event.message or event.kind, done=event.kind == "dispatched")

    def _line(self, worker: str, text: str, done: bool = False) -> None:
        assert self._progress is not None
        text = one_line(text)
        found = self._lines.get(worker)
        if found is None:
            found = self._lines[worker] = self._progress.add_task(worker or "job", total=None, said=text)
        elif text:
            self._progress.update(found, said=short(text, 70))
        if done:
            self._progress.update(found, total=1, completed=1)


def _progress(screen: Screen) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
        console=screen.console,
        transient=True,
    )


def _advance(progress: Progress, line: TaskID, event: Event) -> None:
    """A worker may say how far it is: ``done`` and ``total`` among the extras of an event."""
    extras = event.body.get("extras") if isinstance(event.body, dict) else None
    if isinstance(extras, dict) and _is_number(extras.get("done")) and _is_number(extras.get("total")):
        progress.update(line, completed=extras["done"], total=extras["total"] or None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# -- following ------------------------------------------------------------------------------------


async def follow(job: Job, screen: Screen, *, shown: bool) -> int | None:
    """Wait for the end of ``job``, drawing it; a person is asked what its workers ask, and what Ctrl-C means.

    Returns: None when it is over, else the exit code of who left it.
    """
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    try:
        with JobDisplay(screen, job, shown) as display:
            drawing = loop.create_task(_draw(job, display), name="drawing")
            try:
                return await _wait(job, display, drawing, interrupted)
            finally:
                drawing.cancel()
                await asyncio.gather(drawing, return_exceptions=True)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _wait(
    job: Job, display: JobDisplay, drawing: asyncio.Task[None], interrupted: asyncio.Event
) -> int | None:
    stopping = asyncio.get_running_loop().create_task(interrupted.wait(), name="interrupt")
    try:
        while True:
            await asyncio.wait({drawing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if drawing.done():
                drawing.result()
                return None
            interrupted.clear()
            code = await _leave(job, display)
            if code is not None:
                return code
            stopping = asyncio.get_running_loop().create_task(interrupted.wait(), name="interrupt")
    finally:
        stopping.cancel()


async def _leave(job: Job, display: JobDisplay) -> int | None:
    """After Ctrl-C; None goes on waiting."""
    choice = Choice.CANCEL
    if sys.stdin.isatty() and sys.stderr.isatty():
        with display.aside():
            choice = _choose(job)
    if choice is Choice.WAIT:
        return None
    if choice is Choice.CANCEL:
        confirmed = await job.cancel()
        said = "cancelled" if confirmed else "the broker did not confirm that it is cancelled"
    else:
        said = f"goes on; `headgate nfp jobs result {job.uuid}` takes up its results"
    display.note(f"job {job.uuid} {said}")
    return INTERRUPTED


def _choose(job: Job) -> Choice:
    question = f"\njob {job.uuid}: [c]ancel it, [d]etach and let it run, or [w]ait on? "
    loops = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            print(question, end="", file=sys.stderr, flush=True)
            word = sys.stdin.readline()
            if not word:
                return Choice.DETACH
            for choice in Choice:
                if word.strip().lower()[:1] == choice.value:
                    return choice
    except KeyboardInterrupt:
        return Choice.DETACH
    finally:
        signal.signal(signal.SIGINT, loops)


async def _draw(job: Job, display: JobDisplay) -> None:
    async for event in job.events():
        display.show(event)
        if event.input_id:
            await _answer(job, event, display)


async def _answer(job: Job, event: Event, display: JobDisplay) -> None:
    """Ask whoever sits at the terminal; elsewhere the request waits for its own timeout."""
    if not sys.stdin.isatty():
        display.note(f"{event.worker} asks: {event.question} (no terminal to answer at)")
        return
    with display.aside():
        print(one_line(f"{event.worker} asks: {event.question} "), end="", file=sys.stderr, flush=True)
        word = await asyncio.to_thread(sys.stdin.readline)
    await job.answer(event.input_id, value_of(word.strip()), worker=event.worker, cancel=not word)


# -- results --------------------------------------------------------------------------------------


def show_results(screen: Screen, results: dict[str, Any]) -> int:
    """Print results; returns FAILED when one of them says ``failed``."""
    code = OK
    for worker in sorted(results):
        result = results[worker]
        failed = result_state(result) != DONE
        code = FAILED if failed else code
        if screen.as_json:
            screen.line(compact({"worker": worker, "result": result}))
        elif failed:
            screen.line(f"{worker}: failed: {_errors(result)}", "red")
        else:
            _show_result(screen, worker, result)
    return code


def _errors(result: dict[str, Any]) -> str:
    errors = result.get("errors")
    texts = [str(error).strip() for error in errors] if isinstance(errors, list) else [str(errors or "")]
    return "\n".join(text for text in texts if text) or "it does not say why"


def show_answers(screen: Screen, answers: dict[str, Any]) -> int:
    """Print what services that take no jobs answered: values as they are, none of which says that a task failed."""
    for who in sorted(answers):
        if screen.as_json:
            screen.line(compact({"worker": who, "result": answers[who]}))
        else:
            _show_value(screen, who, answers[who])
    return OK


def _show_result(screen: Screen, worker: str, result: Any) -> None:
    _show_value(
        screen, worker, result["result"] if isinstance(result, dict) and "result" in result else result
    )


def _show_value(screen: Screen, worker: str, value: Any) -> None:
    if screen.rich and isinstance(value, (dict, list)):
        screen.line(f"{worker}:", "bold")
        screen.value(value)
    else:
        screen.line(f"{worker}: {value if isinstance(value, str) else compact(value)}")
