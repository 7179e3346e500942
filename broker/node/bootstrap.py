"""Settings -> a running broker process: logging, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable

from broker.errors import ConfigError, HeadgateError
from broker.node.assembly import Node
from broker.node.flood import FloodGate
from broker.node.logring import RingHandler
from broker.services.log import Log
from broker.settings import Settings

log = logging.getLogger("headgate")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 78
"""sysexits.h EX_CONFIG: a supervisor need not try again."""


Beside = Callable[[Node], contextlib.AbstractAsyncContextManager[object]]
"""What runs in a broker's process beside it: entered once its socket answers, left, by another task, before the broker
leaves."""


def run(
    settings: Settings, *, ready: Callable[[Node], None] | None = None, beside: Beside | None = None
) -> int:
    """Run one rank until it is told to leave; returns the exit code of the process.

    Args:
        settings: as of ``Settings.at_rank``.
        ready: called once the broker has joined and its socket answers, and ``beside`` is entered.
        beside: see ``Beside``; what entering raises ends the process as a failed start does.

    SIGTERM and SIGINT drain and leave; a second one leaves at once.
    """
    set_up_logging(settings)
    try:
        return asyncio.run(_serve(settings, ready, beside))
    except ConfigError as error:
        print(f"headgate: {error}", file=sys.stderr)  # noqa: T201 - one clear line, logging or not
        return EXIT_CONFIG
    except HeadgateError as error:
        print(f"headgate: rank {settings.broker.rank}: {error}", file=sys.stderr)  # noqa: T201 - one clear line, logging or not
        return EXIT_FAILED


async def _serve(settings: Settings, ready: Callable[[Node], None] | None, beside: Beside | None) -> int:
    node = Node(settings)
    keep_log(node)
    leave = asyncio.Event()
    outcome: list[int] = [EXIT_OK]

    def leave_with(reason: str, code: int = EXIT_OK) -> None:
        if not leave.is_set():
            log.info("rank %d leaves: %s", node.rank, reason)
            outcome[0] = code
            leave.set()

    node.succession.on_leave = leave_with
    node.must_exit = lambda reason: leave_with(reason, EXIT_FAILED)
    task = asyncio.current_task()
    assert task is not None
    _on_signals(leave, leave_with, task)
    company = contextlib.AsyncExitStack()
    starting = asyncio.get_running_loop().create_task(_start(node, company, beside), name="start")
    waiting = asyncio.get_running_loop().create_task(leave.wait(), name="leave")
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            settle_memory()
            if ready is not None:
                ready(node)
            await waiting
    except asyncio.CancelledError:
        return EXIT_FAILED
    finally:
        for unfinished in (starting, waiting):
            unfinished.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await company.aclose()
            except Exception:
                log.exception("rank %d: what ran beside the broker did not leave well", node.rank)
            await node.stop()
    return outcome[0]


async def _start(node: Node, company: contextlib.AsyncExitStack, beside: Beside | None) -> None:
    await node.start()
    if beside is not None:
        await company.enter_async_context(beside(node))


def keep_log(node: Node) -> None:
    """Let the broker's own lines be read through its service ``log``."""
    for service in node.dispatcher.services():
        if isinstance(service, Log):
            log.addHandler(RingHandler(service.note))


def _on_signals(leave: asyncio.Event, leave_with: Callable[[str], None], task: asyncio.Task[int]) -> None:
    def signalled(name: str) -> None:
        if leave.is_set():
            task.cancel()
        leave_with(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number.name)


def settle_memory() -> None:
    """What exists now lives as long as the process: no collection looks at it again, and the young are looked at less
    often (a batch makes hundreds of messages, all of them gone at its end without any collection).
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)


def set_up_logging(settings: Settings) -> None:
    """Our own lines to stderr, one each: time, rank, level, text."""
    form = f"%(asctime)s.%(msecs)03d headgate[{settings.broker.rank}] %(levelname)s %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form, "%Y-%m-%dT%H:%M:%S"))
    log.handlers = [handler]
    log.filters = [FloodGate()]
    log.setLevel(settings.broker.log_level.upper())
    log.propagate = False
