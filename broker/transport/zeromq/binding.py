"""Binding a socket of libzmq."""

from __future__ import annotations

import zmq

from broker.obstacles import obstacle
from broker.transport.zeromq.address import Endpoint, bound


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
