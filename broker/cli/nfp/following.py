"""One job on the screen: a line for each event while it runs, what its workers ask, Ctrl-C, its results."""

from __future__ import annotations

import asyncio
import signal
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from broker.cli.content import value_of
from broker.cli.exits import FAILED, INTERRUPTED, OK
from broker.cli.screen import Screen, compact
from broker.errors import print_error
from broker.nfp.names import ASKED_BY_MMI
from broker.nfp.outcome import DONE, result_state
from broker.safe_text import one_line
from broker.tasks import first_of

if TYPE_CHECKING:
    from broker.nfp.client import Event, Job

QUIET: Final = frozenset({"result_ready", "input_response"})
"""Kinds of events that say nothing to a person."""


class Choice(Enum):
    """What to do with a job after Ctrl-C."""

    CANCEL = "c"
    DETACH = "d"
    WAIT = "w"


async def until_done(job: Job, screen: Screen, *, shown: bool) -> int:
    """Follow ``job``, with its events where they are ``shown``, and print its results.

    Raises:
        JobError: how it ended, after the results that came were printed.
    """
    left = await follow(job, screen, shown=shown)
    if left is not None:
        return left
    if job.missing:
        screen.note("nfp", f"not there: {', '.join(job.missing)}")
    code = show_results(screen, job.results, of_tasks=job.service not in ASKED_BY_MMI)
    if job.error is not None:
        raise job.error
    return code


async def follow(job: Job, screen: Screen, *, shown: bool) -> int | None:
    """Wait for the end of ``job``; a person is asked what its workers ask, and what Ctrl-C means.

    Returns: None when it is over, else the exit code of who left it.
    """
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    reading = loop.create_task(_read(job, screen, shown), name="events")
    try:
        while not await first_of(asyncio.wait([reading]), interrupted.wait()):
            interrupted.clear()
            code = await _leave(job, screen)
            if code is not None:
                return code
        reading.result()
        return None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(job: Job, screen: Screen, shown: bool) -> None:
    async for event in job.events():
        if shown and event.kind not in QUIET:
            show(screen, event)
        if event.input_id:
            await answer(job, event, screen)


def show(screen: Screen, event: Event) -> None:
    """Print what happened: with ``--json`` among the results, else beside them."""
    if screen.as_json:
        screen.line(compact({"event": event.kind, "worker": event.worker, "message": event.message}))
    else:
        print_error(one_line(f"{event.worker or '-'}: {event.kind} {event.message}".rstrip()))


async def answer(job: Job, event: Event, screen: Screen) -> None:
    """Ask whoever sits at the terminal; elsewhere the request waits for its own timeout."""
    if not sys.stdin.isatty():
        screen.note("nfp run", f"{event.worker} asks: {event.question} (no terminal to answer at)")
        return
    print(one_line(f"{event.worker} asks: {event.question} "), end="", file=sys.stderr, flush=True)
    word = await asyncio.to_thread(sys.stdin.readline)
    await job.answer(event.input_id, value_of(word.strip()), worker=event.worker, cancel=not word)


async def _leave(job: Job, screen: Screen) -> int | None:
    """After Ctrl-C; None goes on waiting."""
    choice = Choice.CANCEL
    if sys.stdin.isatty() and sys.stderr.isatty():
        choice = _choose(job)
    if choice is Choice.WAIT:
        return None
    if choice is Choice.DETACH:
        said = f"goes on; `headgate nfp jobs result {job.uuid}` takes up its results"
    elif await job.cancel():
        said = "cancelled"
    else:
        said = "the broker did not confirm that it is cancelled"
    screen.note("nfp run", f"job {job.uuid} {said}")
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


def show_results(screen: Screen, results: dict[str, Any], *, of_tasks: bool = True) -> int:
    """Print results; returns FAILED when a task failed.

    Those that are not ``of_tasks`` are what services without jobs answered: values as they are.
    """
    code = OK
    for worker in sorted(results):
        result = results[worker]
        failed = of_tasks and result_state(result) != DONE
        code = FAILED if failed else code
        value = result["result"] if of_tasks and isinstance(result, dict) and "result" in result else result
        if screen.as_json:
            screen.line(compact({"worker": worker, "result": result}))
        elif failed:
            screen.line(f"{worker}: failed: {_errors(result)}", "red")
        elif screen.rich and isinstance(value, (dict, list)):
            screen.line(f"{worker}:", "bold")
            screen.value(value)
        else:
            screen.line(f"{worker}: {value if isinstance(value, str) else compact(value)}")
    return code


def _errors(result: dict[str, Any]) -> str:
    errors = result.get("errors")
    texts = [str(error).strip() for error in errors] if isinstance(errors, list) else [str(errors or "")]
    return "\n".join(text for text in texts if text) or "it does not say why"
