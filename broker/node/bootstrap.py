"""Settings -> a running broker process: logging, signals, the word to the service manager, exit code.

The broker's own log lines go to stderr and into the log ring, where ``flux dmesg`` and ``headgate log`` read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from broker import loglines, memory, supervision
from broker.endings import OK, attended
from broker.node import drain
from broker.node.assembly import Node
from broker.node.probes import StatusReporter
from broker.node.reload import Reload, Reread
from broker.services.log import Log
from broker.settings import Settings
from broker.tasks import first_of, run_to_end

log = logging.getLogger("headgate")


class RingHandler(logging.Handler):
    """Passes every record on as (severity, text).

    Args:
        note: takes them; what it logs itself while it does so is not passed on again.
    """

    def __init__(self, note: Callable[[int, str], None]) -> None:
        super().__init__()
        self._note = note
        self._inside = False

    def emit(self, record: logging.LogRecord) -> None:
        """Pass ``record`` on; never raises."""
        if self._inside:
            return
        self._inside = True
        try:
            self._note(loglines.severity_of(record.levelno), record.getMessage())
        except Exception:
            self.handleError(record)
        finally:
            self._inside = False


Beside = Callable[[Node], contextlib.AbstractAsyncContextManager[object]]
"""A companion in a broker's process: entered once its socket answers, left, by another task, before the broker
leaves."""


def run(
    settings: Settings,
    *,
    ready: Callable[[Node], None] | None = None,
    beside: Beside | None = None,
    reread: Reread | None = None,
) -> int:
    """Run one rank until it is told to leave; returns the exit code of the process.

    Args:
        settings: as of ``Settings.at_rank``.
        ready: called once the broker has joined and its socket answers, and ``beside`` is entered.
        beside: see ``Beside``; what entering raises ends the process as a failed start does.
        reread: how SIGHUP reads the settings again (see ``Reload``); None: it is as SIGTERM, or ignored
            where it was (nohup).

    SIGTERM and SIGINT drain and leave, before the parent is there as well; a second one leaves at once.
    """
    supervision.name_process(f"headgate-{settings.broker.rank}")
    supervision.raise_descriptor_limit()

    def attempt() -> int:
        set_up_logging(settings)
        return run_to_end(serve(settings, ready=ready, beside=beside, reread=reread))

    return attended("headgate", attempt, part=f"rank {settings.broker.rank}: ")


async def serve(
    settings: Settings,
    *,
    ready: Callable[[Node], None] | None = None,
    beside: Beside | None = None,
    reread: Reread | None = None,
) -> int:
    """Run one rank on this event loop, as ``run`` does; returns the exit code. Raises what a failed start raises."""
    leave = asyncio.Event()
    outcome: list[int] = [OK]

    def leave_with(reason: str, code: int = OK) -> None:
        if not leave.is_set():
            log.info("rank %d leaves: %s", settings.broker.rank, reason)
            outcome[0] = code
            leave.set()

    async def reload_now() -> None:  # ``reload`` is made of the node, whose service asks for this
        await reload.now()

    node = Node(settings, leave=leave_with, reload=reload_now if reread is not None else None)
    keep_log(node)
    task = asyncio.current_task()
    assert task is not None
    supervision.on_signals(asyncio.get_running_loop(), leave_with, task.cancel)
    if reread is not None:
        reload = Reload(node, reread)
        _on_hangup(reload.request, leave_with)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup(1) asks to outlive the terminal
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, leave_with, "SIGHUP")
    reporter = StatusReporter(node.probes, node.context)
    supervision.watch(asyncio.get_running_loop().call_later)
    company = contextlib.AsyncExitStack()
    at_once = False
    try:
        if await first_of(_start(node, company, beside), leave.wait()):
            memory.freeze()
            reporter.started()
            if ready is not None:
                ready(node)
            await leave.wait()
    except asyncio.CancelledError:  # the second signal came with the first
        at_once = True
    finally:
        supervision.leaving(drain.bound_s(settings.broker.drain_s))
        if not at_once:
            with contextlib.suppress(asyncio.CancelledError):
                await _leave(node, company)
    return outcome[0]


async def _start(node: Node, company: contextlib.AsyncExitStack, beside: Beside | None) -> None:
    await node.start()
    if beside is not None:
        await company.enter_async_context(beside(node))


async def _leave(node: Node, company: contextlib.AsyncExitStack) -> None:
    try:
        await company.aclose()
    except Exception:
        log.exception("rank %d: what ran beside the broker did not leave well", node.rank)
    await node.stop()
    counters = node.broker.router.counters
    log.info(
        "rank %d has left after %.0f s: %d messages came in, %d requests were refused, %d messages dropped",
        node.rank,
        node.lifecycle.age_s(),
        sum(counters.received().values()),
        counters.refused_requests,
        sum(counters.drops.values()),
    )


def keep_log(node: Node) -> None:
    """Let the broker's own lines be read through its service ``log``."""
    log.addHandler(RingHandler(node.services.find(Log).note))


def _on_hangup(reload: Callable[[], object], leave_with: Callable[[str], None]) -> None:
    """SIGHUP reads the settings again, unless it says what it was invented for: that our terminal is gone."""
    attended = os.isatty(0)

    def hung_up() -> None:
        if attended and not os.isatty(0):
            leave_with("its terminal is gone")
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def set_up_logging(settings: Settings) -> None:
    """Our own lines to stderr, in the form of ``loglines.formatter``."""
    loglines.send_to_stderr(log, str(settings.broker.rank), settings.broker.log_level)
