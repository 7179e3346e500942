"""One broker of NFP as a process: signals, the word to systemd, a new start, the exit code.

SIGTERM and SIGINT end it in order, a second one at once. When management asks for a restart the process executes its
own command line again: same process id, so no supervisor notices, and a new version of the program is what starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from broker import loglines, supervision
from broker.endings import FAILED, OK, attended
from broker.journal.options import JournalOptions
from broker.nfp.server.broker import NfpBroker
from broker.settings.nfp import NfpSection
from broker.tasks import run_to_end

log = logging.getLogger("headgate")

Beside = Callable[[NfpBroker], contextlib.AbstractAsyncContextManager[object]]
"""What runs beside it: entered once it listens, left before it stops."""


def run(settings: NfpSection, *, log_level: str = "info", **means: Any) -> int:
    """Run a broker until it is told to leave; returns the exit code of the process.

    Args:
        settings: the section ``[nfp]``.
        log_level: of its lines to stderr.
        means: see ``serve``.
    """
    loglines.send_to_stderr(log, "nfp", log_level)
    supervision.raise_descriptor_limit()

    def attempt() -> int:
        outcome = run_to_end(serve(settings, **means), again="restart")
        if outcome == "restart":
            supervision.start_again()
        return OK if outcome else FAILED

    return attended("headgate nfp", attempt)


async def serve(
    settings: NfpSection,
    *,
    name: str = "",
    ready: Callable[[NfpBroker], None] | None = None,
    beside: Beside | None = None,
    journal: JournalOptions | None = None,
) -> str:
    """Run a broker in this loop until a signal or management ends it.

    Args:
        settings: the section ``[nfp]``.
        name: see ``NfpBroker``.
        ready: called once it listens, and ``beside`` is entered.
        beside: see ``Beside``; what entering raises ends the process.
        journal: see ``NfpBroker``.

    Returns: "stop" or "restart"; "" after a second signal, which leaves at once.
    """
    broker = NfpBroker(settings, name=name, journal=journal)
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    supervision.watch(loop.call_later)

    def leave(name: str) -> None:
        broker.leave(restart=False, reason=name)

    told = supervision.on_signals(loop, leave, task.cancel)
    try:
        return await _work(broker, ready, beside)
    except asyncio.CancelledError:
        if len(told) < 2:
            raise
        task.uncancel()
        return ""
    finally:
        await broker.abandon()


async def _work(broker: NfpBroker, ready: Callable[[NfpBroker], None] | None, beside: Beside | None) -> str:
    """From its start to its stop in order; returns "stop" or "restart"."""
    await broker.start()
    await broker.files_worker.settled()
    async with beside(broker) if beside is not None else contextlib.nullcontext():
        supervision.announce(broker.loop.call_later, "READY=1")
        if ready is not None:
            ready(broker)
        outcome = await broker.left()
    supervision.notify("STOPPING=1" if outcome == "stop" else "RELOADING=1")
    await broker.stop(f"the broker {'restarts' if outcome == 'restart' else 'stops'}")
    return outcome
