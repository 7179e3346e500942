"""How a caller hands a message over to the thread of the sockets, and waits for room as often as it may."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from broker.oslo.contract import Address, Closed, Undelivered
from broker.oslo.station.station import Station

log = logging.getLogger("headgate.oslo")


def hand_over(
    station: Station,
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
    if station.is_ours():
        retry = 0  # whoever could make room is waiting for us
    elif not station.routes.synced:
        _await_directory(station, address, retry if patient else 0)
    left = -1 if retry is None else retry
    while full() or not station.handing.give(parcel.size):
        if station.over:
            raise Closed(f"{address}: the port is closed")
        if left == 0:
            raise Undelivered(f"{address}: not handed over, its queue is full ({(retry or 0) + 1} attempts)")
        left -= 1
        station.handing.wait(
            station.settings.retry_s, lambda: station.over or (not full() and station.handing.has_room())
        )
    if not station.post(take, parcel):
        raise Closed(f"{address}: the port is closed")


def _await_directory(station: Station, address: Address, retry: int | None) -> None:
    left = -1 if retry is None else retry
    wait_s = station.settings.ready_s
    while not station.routes.wait_synced(wait_s):
        if station.over:
            raise Closed(f"{address}: the port is closed")
        if left == 0:
            raise Undelivered(
                f"{address}: not sent, since nothing is known of who listens where: no answer from"
                f" {station.routes.whereabouts()} within {station.settings.ready_s:g} s"
            )
        if wait_s == station.settings.ready_s:
            log.warning("%s: no answer from %s, still waiting", address, station.routes.whereabouts())
        left -= 1
        wait_s = station.settings.retry_s
