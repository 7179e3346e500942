"""How a lost link is followed by another one, and where events go on then.

The pauses are those of ``broker.backoff``: so the clients of a gateway that died do not all come back in one moment,
and a gateway that stays away is asked less and less often.

Position. The pair (epoch, number of the last event), as gateways number events, is all that any gateway of the instance
needs to resume (gateway/PROTOCOL.md, "Resume"). Events count as missed until the gateway says ``resumed``: the link may
be lost again before that.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from broker.backoff import Backoff
from broker.client.calls import same_error
from broker.errors import LinkError, RpcError
from broker.wire.message import control

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.client.service import Services
    from broker.client.subscriptions import Since, SubscriptionTable
    from broker.transport.link import EventReplay, Link
    from broker.wire.message import Message

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The longest pauses before attempts, in seconds; those of ``client.js``. Each pause is a random part of them."""

    min_s: float = 0.2
    """Before the first one; each following one is twice as long."""
    max_s: float = 10.0


class Reconnecting:
    """Dials until there is a link, or until somebody says that there will be none.

    Args:
        address: for log lines. dial: makes a link, or raises. pauses: between attempts.
    """

    __slots__ = ("_address", "_backoff", "_dial", "_since", "_task")

    def __init__(self, address: str, dial: Callable[[], Awaitable[Link]], pauses: Reconnect) -> None:
        self._address = address
        self._dial = dial
        self._backoff = Backoff(pauses.min_s, pauses.max_s)
        self._since = asyncio.get_running_loop().time()
        self._task: asyncio.Task[None] | None = None

    def begin(
        self, lost: LinkError, connected: Callable[[Link], None], given_up: Callable[[LinkError], None]
    ) -> None:
        """The link was lost: call ``connected`` with another one, or ``given_up`` with the error that ends it all."""
        log.warning("%s; connecting again", lost)
        self._task = asyncio.get_running_loop().create_task(self._work(connected, given_up), name="reconnect")

    def stop(self) -> None:
        """No more attempts."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _work(self, connected: Callable[[Link], None], given_up: Callable[[LinkError], None]) -> None:
        clock = asyncio.get_running_loop().time
        attempt, lived_s = 0, clock() - self._since
        while True:
            await asyncio.sleep(self._backoff.after(lived_s))
            attempt, lived_s = attempt + 1, 0.0
            try:
                link = await self._dial()
            except LinkError as error:
                if error.final:
                    given_up(error)
                    return
                log.info("attempt %d: %s", attempt, error)
            except Exception as error:
                # a token that cannot be had now, for example: the function that makes one is the program's own code
                log.warning("%s: attempt %d: %s", self._address, attempt, str(error) or type(error).__name__)
            else:
                log.warning("%s: connected again", self._address)
                self._since = clock()
                connected(link)
                return


class Position:
    """The position of one handle; nothing where links have no ``replay``.

    Attributes:
        resumed: what the last ``resumed`` said; empty before.
    """

    __slots__ = ("_asked", "_begun", "_lost", "_services", "_subscriptions", "_token", "resumed")

    def __init__(self, subscriptions: SubscriptionTable, services: Services) -> None:
        self._subscriptions = subscriptions
        self._services = services
        self._token: str | None = None
        self._asked = False  # the far end takes one position a link
        self._begun: asyncio.Future[Message] | None = None
        self._lost: LinkError | None = None
        self.resumed: dict[str, Any] = {}

    def follow(self, link: Link) -> None:
        """A new link, on which nothing is asked for yet."""
        replay = link.replay
        if replay is not None:
            replay.on_object = self._heard
            self._begin(replay)

    def begin_at(self, link: Link, since: Since, prefixes: list[str]) -> asyncio.Future[Message]:
        """Have the far end begin with events of before, ahead of the first subscription of ``link``; done when they
        have come.

        Raises:
            RpcError: EBUSY, something is subscribed to already; EOPNOTSUPP, it replays from numbers on; EHOSTUNREACH,
                it has no broker. LinkError: the link is lost.
        """
        replay = link.replay
        assert replay is not None
        if self._lost is not None:
            raise same_error(self._lost)
        if self._asked or replay.resumed or self._subscriptions:
            raise RpcError(
                errno.EBUSY,
                "over a gateway events of before come with the first subscription of a connection",
            )
        if isinstance(since, timedelta):
            raise RpcError(
                errno.EOPNOTSUPP, "a gateway gives events of before behind a number, not of a time"
            )
        epoch, sequence = since if isinstance(since, tuple) else (self._subscriptions.epoch, since)
        if epoch is None:
            raise RpcError(errno.EHOSTUNREACH, "the gateway has no broker at present")
        self._asked = True
        self._subscriptions.epoch, self._subscriptions.sequence = epoch, sequence
        self._begun = asyncio.get_running_loop().create_future()
        replay.resume(epoch=epoch, sequence=sequence, subscriptions=prefixes)
        return self._begun

    def lost(self, error: LinkError) -> None:
        """The link is gone: what it was asked to begin with does not come."""
        begun, self._begun = self._begun, None
        self._lost = error
        if begun is not None and not begun.done():
            begun.set_exception(same_error(error))

    def _begin(self, replay: EventReplay) -> None:
        self._token = replay.welcome.get("resume")
        self._subscriptions.epoch = replay.welcome.get("epoch")
        self._subscriptions.sequence = _number(replay.welcome.get("sequence"))

    def resume(self, link: Link) -> None:
        """Go on over ``link`` where the one before ended; it is told which one that was, and ends it if it hangs."""
        replay = link.replay
        if replay is None:
            return
        replay.on_object = self._heard
        self._asked, self._lost = False, None
        prefixes, former = self._subscriptions.prefixes, self._token
        known = self._subscriptions.epoch is not None
        # nothing to go on from: the new link's own numbers count
        if not (prefixes and known):
            self._begin(replay)
        self._token = replay.welcome.get("resume")
        if prefixes and not known:
            self._subscriptions.restore()
            self._subscriptions.missed("the connection was lost while the gateway had no broker")
        elif self._subscriptions.epoch is not None:
            position = {
                "epoch": self._subscriptions.epoch,
                "sequence": self._subscriptions.sequence,
                "subscriptions": prefixes,
            }
            self._asked = True
            replay.resume(**position, **({"token": former} if former else {}))

    def _heard(self, obj: dict[str, Any]) -> None:
        """One object of the gateway (``EventReplay.on_object``)."""
        kind = obj.get("type")
        if kind == "resumed":
            self._resumed(obj)
        elif kind == "upstream" and obj.get("joined"):
            # another rank 0 numbers its events anew
            if obj.get("epoch") != self._subscriptions.epoch:
                self._subscriptions.epoch, self._subscriptions.sequence = obj.get("epoch"), 0
            if obj.get("lost") != 0:
                self._subscriptions.missed("the gateway lost its broker meanwhile")
        elif kind == "gap":
            self._subscriptions.missed(
                f"the gateway dropped {obj.get('lost')} events because we read too slowly"
            )
        elif kind == "unsubscribed":
            self._withdraw(obj.get("subscriptions"))
        elif kind == "service" and not obj.get("registered"):
            self._services.forget(str(obj.get("service")))

    def _resumed(self, obj: dict[str, Any]) -> None:
        self.resumed = obj
        self._subscriptions.epoch = obj.get("epoch") or self._subscriptions.epoch
        self._subscriptions.sequence = _number(obj.get("sequence"))
        self._withdraw(obj.get("denied"))
        begun, self._begun = self._begun, None
        if begun is not None and not begun.done():
            begun.set_result(control(0))
        if not obj.get("recovered"):
            self._subscriptions.missed(
                "the connection was lost, and the gateway cannot give all of what was missed"
                if begun is None
                else "the gateway cannot give all of what was published since"
            )

    def _withdraw(self, prefixes: Any) -> None:
        for prefix in prefixes or ():
            self._subscriptions.drop(
                str(prefix), RpcError(errno.EPERM, f"{prefix!r} is not given any more", "event.subscribe")
            )


def _number(found: Any) -> int:
    return found if isinstance(found, int) else 0
