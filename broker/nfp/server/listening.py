"""The endpoints of the settings -> routers: one for everybody, or one for clients and one for workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.endpoints import parse
from broker.nfp.names import Sender
from broker.nfp.server.router import EVERYBODY, NfpRouter, Tuning
from broker.transport.curve import CurveServer
from broker.transport.zeromq.listening import SCHEMES

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker


async def listen(broker: NfpBroker) -> None:
    """Open the routers of ``broker``; those that were opened before one failed are in ``broker.routers``.

    Raises:
        ConfigError: an endpoint cannot be had, or would be open to other machines in plaintext.
    """
    settings = broker.settings
    curve = CurveServer(broker.keys.broker) if broker.keys.broker is not None else None
    hold_ms = settings.keepalive_ms * settings.multiplier
    tuning = Tuning(
        curve,
        settings.message_bytes_max,
        settings.keepalive_ms,
        hold_ms,
        broker.limits,
        settings.insecure,
    )
    places = [(settings.endpoint, EVERYBODY)]
    if settings.worker_endpoint is not None:
        # workers have requests, too: for inventory, files, others
        places = [(settings.endpoint, frozenset({Sender.CLIENT})), (settings.worker_endpoint, EVERYBODY)]
    for uri, senders in places:
        asked = parse(uri, *SCHEMES)
        broker.routers.append(
            NfpRouter(asked, broker.ingress, broker.flusher, tuning, senders, broker.recording)
        )
