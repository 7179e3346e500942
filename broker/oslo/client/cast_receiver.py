"""The PULL socket of a process: casts for all of its rpc-servers, from the PUSH that the node's proxy keeps for it."""

from __future__ import annotations

from typing import Final

import zmq

from broker.oslo.contract import Settings
from broker.oslo.reactor import Pipe, Reactor
from broker.oslo.reactor.pipe import Receive
from broker.oslo.reactor.tuning import tune_local

OLD_EXIT_S: Final = 1.0
"""How long it stays connected to a proxy's former socket, to read what came from there."""


class CastReceiver:
    """Opened with the first server. For the thread of the sockets.

    Args:
        receive: takes the frames of a cast.
    """

    def __init__(self, reactor: Reactor, settings: Settings, receive: Receive) -> None:
        self._reactor = reactor
        self._settings = settings
        self._receive = receive
        self._pipe: Pipe | None = None
        self._from = ""
        self._connected: set[str] = set()

    def pull_from(self, endpoint: str) -> str:
        """Read what comes from there; returns why not, "" it is read."""
        pipe = self._pipe
        if pipe is None:
            assert self._reactor.context is not None
            sock: zmq.Socket[bytes] = self._reactor.context.socket(zmq.PULL)
            tune_local(sock, self._settings.message_bytes_max)
            pipe = self._pipe = Pipe(self._reactor, sock, self._receive)
        if endpoint == self._from:
            return ""
        self._reactor.touch(pipe)  # also when libzmq refuses: it takes in the news of messages first
        try:
            if not endpoint.startswith("ipc://"):
                raise ValueError("expected an ipc:// endpoint")
            if endpoint in self._connected:  # by an earlier proxy: its next one has to let us in anew
                pipe.sock.disconnect(endpoint)
            pipe.sock.connect(endpoint)
        except (ValueError, zmq.ZMQError) as error:
            return f"saw the way out {endpoint[:64]!r} of casts: {error}"
        self._connected.add(endpoint)
        if self._from:
            self._reactor.call_later(OLD_EXIT_S, self._leave, pipe, self._from)
        self._from = endpoint
        return ""

    def _leave(self, pipe: Pipe, endpoint: str) -> None:
        if not pipe.closed and endpoint != self._from and endpoint in self._connected:
            self._connected.discard(endpoint)
            self._reactor.touch(pipe)
            pipe.sock.disconnect(endpoint)

    def pause(self) -> None:
        """Read nothing: what comes waits at the proxy, in its bounded queue."""
        if self._pipe is not None:
            self._pipe.paused = True

    def resume(self) -> None:
        """Read on."""
        if self._pipe is not None and self._pipe.paused:
            self._pipe.paused = False

    def close(self) -> None:
        """Close the socket."""
        if self._pipe is not None:
            self._pipe.close()
