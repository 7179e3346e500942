"""What the senders of one client share."""

from __future__ import annotations

from typing import NamedTuple

from broker.oslo.client.folder import TrustedFolder
from broker.oslo.client.handoff import Handoff
from broker.oslo.client.routing import RoutingTable
from broker.oslo.contract import Settings
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters


class ClientParts(NamedTuple):
    """See the module; all of it but ``handoff`` and the lookups of ``routes`` is for the thread of the sockets."""

    reactor: Reactor
    settings: Settings
    routes: RoutingTable
    folder: TrustedFolder
    handoff: Handoff
    counters: Counters
