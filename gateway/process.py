"""One gateway as a process: logging, signals, the word to systemd, the exit code.

SIGTERM and SIGINT drain and leave, a second one leaves at once; SIGHUP reads users, rules, certificates,
tokens and keys again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from asyncio import sslproto
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self

from broker import loglines, memory, supervision
from broker.endings import OK, attended
from broker.rereading import Rereading
from broker.tasks import first_of, run_to_end
from gateway.serve import Gateway, Reread
from gateway.settings.schema import GatewaySettings

log = logging.getLogger("headgate")

END_S: Final = 5.0
"""How long an end takes behind its drain, with room to spare."""
TLS_READ_BYTES: Final = 16384
"""What a TLS connection reads at a time: the largest record (RFC 8446, section 5.1)."""


def run(
    settings: GatewaySettings,
    *,
    upstream: str | None = None,
    sockets: Sequence[socket.socket] | None = None,
    worker: tuple[str, str] | None = None,
    ready: Callable[[Gateway], None] | None = None,
    reread: Reread | None = None,
    reload_all: Callable[[], None] | None = None,
    leave_all: Callable[[], None] | None = None,
) -> int:
    """Run one gateway until it is told to leave; returns the exit code of the process.

    Args:
        settings: as of ``Gateway``, like the next three.
        upstream: address of the broker.
        sockets: bound already.
        worker: name of this worker, and the directory it shares with the other workers.
        ready: called once the doors are open.
        reread: as of ``Gateway``, like the next.
        reload_all: see there.
        leave_all: makes the supervisor and all its workers leave, for ``gateway.drain``.
    """
    set_up_logging(settings.gateway.log_level, f"gateway {worker[0]}" if worker else "gateway")
    supervision.name_process(f"headgate-web-{worker[0].partition('-')[0]}" if worker else "headgate-web")
    supervision.raise_descriptor_limit()
    shrink_tls_buffers()

    def make(leave: Callable[[str], None]) -> Gateway:
        return Gateway(
            settings,
            upstream=upstream,
            sockets=sockets,
            worker=worker,
            reread=reread,
            reload_all=reload_all,
            leave=leave,
        )

    return attended("headgate gateway", lambda: run_to_end(_serve(make, ready, leave_all)))


async def _serve(
    make: Callable[[Callable[[str], None]], Gateway],
    ready: Callable[[Gateway], None] | None,
    leave_all: Callable[[], None] | None,
) -> int:
    def leave(reason: str) -> None:
        if leave_all is not None:
            leave_all()
        else:
            leaving.leave(reason)

    gateway = make(leave)
    async with Leaving(gateway) as leaving:
        if await leaving.unless_left(gateway.start()):
            memory.freeze(memory.OLD_OF_TRANSPORTS)
            if ready is not None:
                ready(gateway)
            memory.Trim().watch(asyncio.get_running_loop().call_later)
            await leaving.wait()
    return OK


class Leaving:
    """Turns signals into the end of a gateway: entered before it starts, left once it has drained.

    Args:
        gateway: its ``stop`` is awaited at the end.

    Attributes:
        forced: a second signal came: what is left should end without waiting.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.forced = False
        self._told = asyncio.Event()
        self._task = asyncio.current_task()
        self._rereading = Rereading(gateway.reload)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        supervision.on_signals(loop, self.leave, self._force)
        loop.add_signal_handler(signal.SIGHUP, self._rereading.request)
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        try:
            if not self.forced:
                await self._gateway.stop()
        except asyncio.CancelledError:
            if not self.forced:
                raise
        if self.forced and self._task is not None:
            self._task.uncancel()
            await self._gateway.abandon()
        await self._rereading.stop()
        return self.forced and isinstance(error, asyncio.CancelledError)

    async def unless_left(self, starting: Coroutine[Any, Any, None]) -> bool:
        """Await ``starting``; False when a signal came before its end."""
        return await first_of(starting, self._told.wait())

    async def wait(self) -> None:
        """Tell systemd that we are ready, and wait for a signal; a second one cancels whatever is still under way."""
        call_later = asyncio.get_running_loop().call_later
        supervision.announce(call_later, "READY=1")
        supervision.watch(call_later)
        await self._told.wait()
        supervision.leaving(self._gateway.settings.gateway.drain_s + END_S)

    def leave(self, reason: str) -> None:
        """As the first signal does."""
        if not self._told.is_set():
            log.info("gateway leaves: %s", reason)
            self._told.set()

    def _force(self) -> None:
        if not self.forced and self._task is not None:
            self.forced = True
            self._task.cancel()


def shrink_tls_buffers() -> None:
    """Let a TLS connection of this process read records of ``TLS_READ_BYTES`` instead of asyncio's 256 KiB.

    asyncio keeps a buffer of that size for each connection (``SSLProtocol.max_size``, the same since Python 3.11) and
    has no setting for it: 10 000 idle clients would hold 2.5 GiB. The data stream is the same with any size.
    """
    if hasattr(sslproto.SSLProtocol, "max_size"):
        sslproto.SSLProtocol.max_size = TLS_READ_BYTES


def set_up_logging(level: str, name: str) -> None:
    """Our own lines to stderr, in the form of ``loglines.formatter``."""
    loglines.send_to_stderr(log, name, level)
