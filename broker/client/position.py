"""The number of the last event that a client has, as gateways number them; and which events its gateway says it missed.

The pair (epoch, number of the last event) is all that any gateway of the instance needs to resume (gateway/PROTOCOL.md,
"Resume"). Events count as missed until the gateway says ``resumed``: the link may be lost again before that.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from broker.errors import RpcError

if TYPE_CHECKING:
    from broker.client.registered import Services
    from broker.client.subscriptions import SubscriptionTable
    from broker.transport.link import EventReplay, Link


class Position:
    """The position of one handle; nothing where links have no ``talk``.

    Attributes:
        epoch: of the numbers; None: not known.
        resumed: what the last ``resumed`` said; empty before.
    """

    __slots__ = ("_services", "_subscriptions", "_token", "epoch", "resumed")

    def __init__(self, subscriptions: SubscriptionTable, services: Services) -> None:
        self._subscriptions = subscriptions
        self._services = services
        self._token: str | None = None
        self.epoch: str | None = None
        self.resumed: dict[str, Any] = {}

    def follow(self, link: Link) -> None:
        """A new link, on which nothing is asked for yet."""
        talk = link.talk
        if talk is not None:
            talk.on_object = self._heard
            self._begin(talk)

    def _begin(self, talk: EventReplay) -> None:
        self._token = talk.welcome.get("resume")
        self.epoch = talk.welcome.get("epoch")
        self._subscriptions.sequence = _number(talk.welcome.get("sequence"))

    def resume(self, link: Link) -> None:
        """Go on over ``link`` where the one before ended; it is told which one that was, and ends it if it hangs."""
        talk = link.talk
        if talk is None:
            return
        talk.on_object = self._heard
        prefixes, former, known = self._subscriptions.prefixes, self._token, self.epoch is not None
        if not (prefixes and known):
            self._begin(talk)
        self._token = talk.welcome.get("resume")
        if prefixes and not known:
            self._subscriptions.restore()
            self._subscriptions.missed("the connection was lost while the gateway had no broker")
        elif self.epoch is not None:
            position = {
                "epoch": self.epoch,
                "sequence": self._subscriptions.sequence,
                "subscriptions": prefixes,
            }
            talk.resume(**position, **({"token": former} if former else {}))

    def _heard(self, obj: dict[str, Any]) -> None:
        """One object of the gateway (``EventReplay.on_object``)."""
        kind = obj.get("type")
        if kind == "resumed":
            self._resumed(obj)
        elif kind == "upstream" and obj.get("joined"):
            if obj.get("epoch") != self.epoch:
                self.epoch, self._subscriptions.sequence = obj.get("epoch"), 0
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
        self.epoch = obj.get("epoch") or self.epoch
        self._subscriptions.sequence = _number(obj.get("sequence"))
        self._withdraw(obj.get("denied"))
        if not obj.get("recovered"):
            self._subscriptions.missed(
                "the connection was lost, and the gateway cannot give all of what was missed"
            )

    def _withdraw(self, prefixes: Any) -> None:
        for prefix in prefixes or ():
            self._subscriptions.drop(
                str(prefix), RpcError(errno.EPERM, f"{prefix!r} is not given any more", "event.subscribe")
            )


def _number(found: Any) -> int:
    return found if isinstance(found, int) else 0
