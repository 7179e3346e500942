"""How a caller hands a message over to the thread of the sockets, and waits for room as often as it may."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.oslo.client.client import Client
from broker.oslo.contract import Address, Closed, Undelivered

log = logging.getLogger("headgate.oslo")


def submit(
    client: Client,
    take: Callable[[Any], None],
    parcel: Any,
    address: Address,
    retry: int | None,
    full: Callable[[], bool],
    *,
    patient: bool = True,
) -> None:
    """Give ``parcel`` to the thread of the sockets as soon as there is room.

    ``full`` says that there is none at the nodes. ``patient``: without a directory, wait for one as often as
    ``retry`` allows; otherwise only ``ready_s``.
    """
    if client.is_ours():
        retry = 0  # whoever could make room is waiting for us
    elif not client.routes.synced:
        _await_directory(client, address, retry if patient else 0)
    left = -1 if retry is None else retry
    while full() or not client.handoff.give(parcel.size):
        if client.over:
            raise Closed(f"{address}: the session is closed")
        if left == 0:
            raise Undelivered(f"{address}: not handed over, its queue is full ({(retry or 0) + 1} attempts)")
        left -= 1
        client.handoff.wait(
            client.settings.retry_s, lambda: client.over or (not full() and client.handoff.has_room())
        )
    if not client.post(take, parcel):
        raise Closed(f"{address}: the session is closed")


def _await_directory(client: Client, address: Address, retry: int | None) -> None:
    left = -1 if retry is None else retry
    wait_s = client.settings.ready_s
    while not client.routes.wait_synced(wait_s):
        if client.over:
            raise Closed(f"{address}: the session is closed")
        if left == 0:
            raise Undelivered(
                f"{address}: not sent, since nothing is known of who listens where: no answer from"
                f" {client.routes.whereabouts()} within {client.settings.ready_s:g} s"
            )
        if wait_s == client.settings.ready_s:
            log.warning("%s: no answer from %s, still waiting", address, client.routes.whereabouts())
        left -= 1
        wait_s = client.settings.retry_s
