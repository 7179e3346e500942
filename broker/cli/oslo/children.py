"""Processes beside this one: a node's proxy, and its bridge.

Each is this program again (``room``): it reads its order, JSON, from its input, and says where its rooms listen before
it says that it is ready.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from broker import interpreter
from broker.children.child import Child, Program, Restarts, telling
from broker.children.supervisor import Step, Supervisor
from broker.endings import CONFIG, TEMPFAIL, USAGE
from broker.errors import ConfigError, HeadgateError, NotReady
from broker.secret import revealed
from broker.settings import JournalSection, OsloSection
from broker.tasks import first_of

log = logging.getLogger("headgate.oslo")

READY_S: Final = 20.0
"""How long the children may take until they can be used, the first time."""
LEAVE_S: Final = 12.0
"""How long one may take to leave before it is told to do so at once: a proxy gives its servers what waits for them for
10 s."""
RESTARTS: Final = Restarts(first_s=0.1, longest_s=5.0, ends_max=1, final=frozenset((USAGE, CONFIG)))
"""A proxy that was told to leave by others than us is started again: SIGTERM is a restart to it."""
ENDPOINTS: Final = "X_HEADGATE_ENDPOINTS"
"""What a child says of where its rooms listen, JSON."""
_KINDS: Final = {CONFIG: ConfigError, USAGE: ConfigError, TEMPFAIL: NotReady}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: to be the proxy, or, with ``bridge``, the Flux broker to be reachable on."""

    section: OsloSection
    bridge: str = ""
    log_level: str = "warning"
    journal: JournalSection = msgspec.field(default_factory=JournalSection)

    @property
    def name(self) -> str:
        """For people."""
        return "bridge" if self.bridge else "proxy"


def orders(
    section: OsloSection,
    bridge: str = "",
    *,
    log_level: str = "warning",
    journal: JournalSection | None = None,
) -> list[Order]:
    """The children that settings ask for: the proxy, and the bridge where ``bridge`` names a broker."""
    kept = journal if journal is not None else JournalSection()
    made = [Order(section=section, log_level=log_level, journal=kept)]
    if bridge:
        made.append(Order(section=section, bridge=bridge, log_level=log_level))
    return made


class OsloChild(Child):
    """One child.

    Args:
        order: what it is told. given: descriptor of the file that tells it so.
        depends_on: names of children that have to be ready before. folder: for a socket.

    Attributes:
        endpoints: where its rooms listen, as it said last.
    """

    def __init__(self, order: Order, given: int, depends_on: tuple[str, ...], folder: str) -> None:
        program = Program(
            f"oslo {order.name}",
            lambda: interpreter.command("broker.cli.oslo.room"),
            depends_on,
            stdin=given,
            output=functools.partial(os.dup, 2),
            restarts=RESTARTS,
        )
        super().__init__(program, telling(log), os.path.join(folder, order.name))
        self.order = order
        self.endpoints: dict[str, str] = {}
        self._stale = False

    def renew(self, order: Order) -> None:
        """Go by ``order`` from now on: a process that runs is told to read it again, the next one begins with it."""
        if self.over:
            return
        self.order = order
        interpreter.renew(self.program.stdin, _encoded(order))
        self._stale = not order.bridge  # that one finds its settings when it starts
        if self.ready:
            self._tell_again()

    def _tell_again(self) -> None:
        if self._stale:
            self._stale = False
            self.send_signal(signal.SIGHUP)

    def hear(self, line: str) -> None:
        """Take in a line that it says, see ``Child``."""
        name, _, value = line.partition("=")
        if name == ENDPOINTS:
            self.endpoints = msgspec.json.decode(value, type=dict[str, str])
        super().hear(line)

    def failure(self) -> HeadgateError:
        """What to raise when it is left; it has said why itself."""
        kind = _KINDS.get(self.code or 0, HeadgateError)
        again = ", is not started again" if self.was_ready else " before it was ready"
        return kind(f"the process for {self.order.name} {self.why}{again}")

    def tell(self, event: str, text: str) -> None:
        """Tell of what happens, see ``Child``."""
        if event == "starting":
            self._stale = False
        elif event == "ready":
            self._tell_again()  # what has changed since it was started
        if event != "left" or self.was_ready:  # else ``failure`` is raised
            super().tell(event, text)


def _encoded(order: Order) -> bytes:
    return msgspec.json.encode(order, enc_hook=revealed)


class Children(Supervisor):
    """All of them.

    Args:
        wanted: an order for each.
    """

    def __init__(self, wanted: Sequence[Order]) -> None:
        self._held = contextlib.ExitStack()
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="headgate-oslo-"))
        rooms = tuple(f"oslo {order.name}" for order in wanted if not order.bridge)
        self._all: list[OsloChild] = []
        for order in wanted:
            given = interpreter.order(_encoded(order))
            self._held.callback(os.close, given)
            before = rooms if order.bridge else ()  # a bridge finds its node's rooms there
            self._all.append(OsloChild(order, given, before, folder))
        super().__init__(self._all)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the rooms listen."""
        return {room: where for child in self._all for room, where in child.endpoints.items()}

    async def start(self) -> None:
        """Start all and wait until each can be used.

        Raises:
            ConfigError, HeadgateError: one of them cannot. TimeoutError: not within READY_S.
        """
        self.begin()
        try:
            await self.join(READY_S)
            for child in self._all:
                if child.over:
                    raise child.failure()
        except BaseException:
            await self.stop()
            raise

    def renew(self, section: OsloSection) -> None:
        """All of them go by ``section`` from now on."""
        for child in self._all:
            child.renew(msgspec.structs.replace(child.order, section=section))

    async def failed(self) -> None:
        """Wait for ever, unless a child is not started again.

        Raises:
            ConfigError, HeadgateError: why it is not.
        """
        await first_of(*(child.wait() for child in self._all))
        raise next(child.failure() for child in self._all if child.over)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End all by signal ``number``, the latest first: a bridge leaves through its node's rooms. Harmless twice."""
        for child in reversed(self._all):
            await self.end([child], Step([child], number, LEAVE_S))
        self._held.close()
