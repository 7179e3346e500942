"""Where a ZeroMQ socket listens: from the address of a setting to the one that libzmq has bound."""

from __future__ import annotations

import socket

import zmq

from broker.obstacles import obstacle
from broker.schemes import listening_host
from broker.transport.zeromq.address import Endpoint, bound, check_free, check_secrecy, parse


def listening_at(uri: str, curve: object, insecure: bool) -> Endpoint:
    """Where to bind for ``uri``: see ``schemes.listening_host``; the name of an interface is left to libzmq.

    Raises:
        ConfigError: bad address, a path that is in use, or plaintext off loopback.
    """
    endpoint = parse(uri)
    if endpoint.scheme == "ipc":
        check_free(endpoint)
    elif endpoint.host not in {name for _index, name in socket.if_nameindex()}:
        endpoint = endpoint._replace(host=listening_host(endpoint.host))
    check_secrecy([endpoint], curve, insecure, uri)
    return endpoint


def bind(sock: zmq.Socket[bytes], endpoint: Endpoint) -> Endpoint:
    """Bind ``sock`` and return where: with the port that it was given.

    Raises:
        ConfigError: in use, not ours, not there.
    """
    sock.set(zmq.IPV6, int(endpoint.ipv6))
    try:
        sock.bind(endpoint.text)
    except zmq.ZMQError as error:
        text = f"cannot listen at {endpoint.text}: {error.strerror}"
        raise obstacle(text, error, absent=True, port=endpoint.port) from error
    return bound(sock.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
