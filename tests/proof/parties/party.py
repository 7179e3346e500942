"""What all parties have: the log, the two signals, connecting again."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.proof.layout import LOCAL, OWNER, Party
from tests.proof.record import Writer

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
DRAIN_POLL_S = 0.05
PR_SET_PDEATHSIG = 1


class Place(NamedTuple):
    """Where a party finds what it connects to; what its kind does not need is "".

    Attributes:
        folder: of the logs. uri: broker or gateway. cert: its CURVE certificate, or the file that the gateway's
            certificate is checked with. server_key: Z85. token: for the gateway. state: a folder of its own.
        balancer: the file where that says which client goes to which gateway.
    """

    folder: str
    uri: str
    cert: str = ""
    server_key: str = ""
    token: str = ""
    state: str = ""
    balancer: str = ""


class Load(ABC):
    """A party that runs in an event loop.

    Attributes:
        log: its file. draining, leaving: told to make no new load; told to leave. open: calls that wait for their end.
    """

    def __init__(self, party: Party, place: Place) -> None:
        self.party = party
        self.place = place
        self.log = Writer(Path(place.folder), party.name)
        self.userid = os.getuid() if party.userid is None else party.userid
        self.draining = asyncio.Event()
        self.leaving = asyncio.Event()
        self.open: set[str] = set()

    @abstractmethod
    async def session(self) -> None:
        """One connection, from `up` to `down`; returns when it is over or ``leaving``.

        Raises:
            OSError, TimeoutError: it cannot be made.
        """

    async def run(self) -> int:
        """Connect, and connect again, until told to leave."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self.draining.set)
        loop.add_signal_handler(signal.SIGTERM, self._leave)
        drained = loop.create_task(self._say_drained(), name="drained")
        pause_s = FIRST_PAUSE_S
        try:
            while not self.leaving.is_set():
                try:
                    await self.session()
                    pause_s = FIRST_PAUSE_S
                except (OSError, TimeoutError) as error:
                    self.log.note(f"no connection: {type(error).__name__}: {error}"[:300])
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.leaving.wait(), pause_s)
        finally:
            drained.cancel()
            self.log.close()
        return 0

    def _leave(self) -> None:
        self.draining.set()
        self.leaving.set()

    async def _say_drained(self) -> None:
        await self.draining.wait()
        while self.open:
            await asyncio.sleep(DRAIN_POLL_S)
        print("drained", flush=True)

    # -- for sessions ------------------------------------------------------------------------------

    async def every(self, seconds: float, do: Callable[[int], Awaitable[Any]]) -> None:
        """``do(0)``, ``do(1)`` and so on with a pause between two, until draining."""
        number = 0
        while not self.draining.is_set():
            await do(number)
            number += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.draining.wait(), seconds)

    def call(self, conn: str, to: str, number: int, **more: Any) -> dict[str, Any]:
        """Write a call down; returns what goes into its payload."""
        ident = self.log.next_id()
        self.open.add(ident)
        self.log.call(conn, ident, to, number, **more)
        return {"id": ident, "from": conn, "n": number}

    @property
    def forged(self) -> dict[str, int]:
        """What a party that is no owner writes as its own identity into what it sends: that of the owner."""
        return {} if self.party.roles & OWNER else {"userid": os.getuid(), "rolemask": OWNER | LOCAL}

    def ended(self, ident: str) -> None:
        """A call has its end."""
        self.open.discard(ident)


def die_with_parent() -> None:
    """Be killed when the driver ends. A change of the effective userid takes that away, so it is asked for again."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def run(load: Callable[[], Load]) -> int:
    """Run one party; its main program."""

    async def started() -> int:
        return await load().run()

    try:
        return asyncio.run(started())
    except KeyboardInterrupt:
        return 130
    finally:
        sys.stdout.flush()
