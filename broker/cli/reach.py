"""Whether others reach this host's broker: seen from the listening side, where the mistake is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.cli.diagnosis import Finding, ok
from broker.endpoints import is_loopback, listening_host, split
from broker.schemes import scheme_of
from broker.sockets import tcp_listeners

if TYPE_CHECKING:
    from broker.settings import Settings
    from broker.settings.schema import HostEntry


def reach(settings: Settings) -> Iterator[Finding]:
    """Whether those who dial this rank (of ``Settings.at_rank``) from other machines reach where it listens."""
    rank = settings.broker.rank or 0
    own = settings.host(rank)
    place = (own.bind or own.address) if own is not None else ""
    if (
        own is None
        or {scheme_of(own.address), scheme_of(place)} != {"tcp"}
        or not any(_children(settings, rank))
    ):
        return
    host, bound, port = split(own.address).host, listening_host(split(place).host), place.rpartition(":")[2]
    elsewhere = [
        child.hostname
        for child in _children(settings, rank)
        if child is not None and child.hostname and child.hostname != own.hostname
    ]
    heard = [address for address, _inode in tcp_listeners(int(port))] if port.isdigit() else []
    if is_loopback(bound) and (elsewhere or not is_loopback(host)):
        yield Finding(
            "fail",
            f"rank {rank} listens at {place}, and {own.address} is what its children dial: "
            "others cannot reach this address",
            f'hosts.bind = "tcp://*:{own.address.rpartition(":")[2]}"'
            + ("" if not is_loopback(host) else ", and an address that other machines know"),
        )
    elif heard and not is_loopback(host) and all(is_loopback(each) for each in heard):
        yield Finding(
            "fail",
            f"what listens on port {port} now does so at {', '.join(heard)} alone: others cannot reach {own.address}",
            "is it this broker, started with this configuration? start it again",
        )
    elif not is_loopback(host):
        where = "all interfaces" if bound == "*" else bound
        yield ok(f"rank {rank} listens on {where}, its children dial {own.address}{_known_here(host)}")


def _children(settings: Settings, rank: int) -> Iterator[HostEntry | None]:
    from broker.node.assembly import topology_of

    return (settings.host(child) for child in topology_of(settings).children(rank))


def _known_here(host: str) -> str:
    """What a name means on this machine, where that is the loopback; "" otherwise."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    if not all(is_loopback(each) for each in found):
        return ""
    return f", which is {', '.join(sorted(found))} here: other machines must know {host} by another address"
