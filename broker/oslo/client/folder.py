"""The folder of the node's sockets: used only where nobody else can have made it.

Whoever owns the folder reads what is sent there and is believed: ``broker.trust`` says whose it may be. While there is
none below a folder where everybody may make one (``/tmp``) it is not connected to either: libzmq would take whatever
comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import zmq

from broker.oslo.reactor import Reactor, Socket
from broker.trust import folder_objection, is_kept

LOOK_S: Final = 0.5
"""Between two looks for a folder that is not there, or not to be used."""


class TrustedFolder:
    """The one of a client, for the thread of the sockets.

    Args:
        say: logs a line, not too often.
    """

    def __init__(self, reactor: Reactor, path: str, say: Callable[..., None]) -> None:
        self._reactor = reactor
        self._path = path
        self._say = say

    def usable(self) -> bool:
        """Whether its sockets may be connected to now; why not is logged."""
        text = folder_objection(self._path)
        if text:
            self._say("the proxy of this node is not spoken to: %s", text)
            return False
        return os.path.exists(self._path) or is_kept(os.path.dirname(os.path.abspath(self._path)))

    def endpoint(self, name: str) -> str:
        """Of the file ``name``."""
        return f"ipc://{os.path.join(self._path, name)}"

    def connect(self, socket: Socket, name: str) -> None:
        """Connect to the file ``name``, now or as soon as the folder may be used."""
        if socket.closed:
            return
        if self.usable():
            self._reactor.check_after_turn(socket)
            socket.sock.connect(self.endpoint(name))
        else:
            self._reactor.call_later(LOOK_S, self.connect, socket, name)

    def reconnect(self, socket: Socket, name: str) -> None:
        """Make the connection anew."""
        self._reactor.check_after_turn(socket)
        try:
            socket.sock.disconnect(self.endpoint(name))
        except zmq.ZMQError:  # it was never made; that is still being tried
            return
        self.connect(socket, name)
