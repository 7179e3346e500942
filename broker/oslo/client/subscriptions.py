"""The SUB socket of a process for the fan-outs of its node: what it subscribes to, and since when that is in force.

A subscription has no answer in ZeroMQ. So a token is subscribed to behind it: the proxy publishes ``[?token][OPENED]
[JSON Opened]`` when it sees that, and by then what was subscribed to before is in force. A token that is not answered
is followed by another one; after ``TOKENS`` of them the connection is made anew. libzmq repeats all subscriptions by
itself when the connection is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from broker.nesting import decoder
from broker.oslo.client.folder import TrustedFolder
from broker.oslo.contract import Settings
from broker.oslo.frames import HANDSHAKE_LETTER, Kind, Malformed, decode, new_id
from broker.oslo.names import Pipeline, exit_file
from broker.oslo.reactor import Reactor, Socket, Timer
from broker.oslo.reactor.tuning import PUBLISH_MSGS, tune_local
from broker.oslo.records import Opened

PATIENCE_S: Final = 0.5
"""For the answer to a token: some milliseconds when the proxy is there."""
TOKENS: Final = 4
_read_opened: Final = decoder(Opened)

Confirmed = Callable[[Opened], None]


class ClientSubscriptions:
    """One SUB socket, opened with its first subscription. For the thread of the sockets.

    Args:
        receive: takes the frames of a message that is no answer to a token.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        folder: TrustedFolder,
        receive: Callable[[list[bytes]], None],
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._folder = folder
        self._file = exit_file(Pipeline.FANOUT)
        self._receive = receive
        self._filters: Counter[bytes] = Counter()
        self._tokens: dict[bytes, list[Confirmed]] = {}
        self._socket: Socket | None = None
        self._timer: Timer | None = None
        self._tries = 0

    def subscribe(self, data: bytes, confirmed: Confirmed) -> None:
        """Subscribe, once more; ``confirmed`` is called when it is in force."""
        socket = self._opened()
        self._filters[data] += 1
        if self._filters[data] == 1:
            socket.sock.setsockopt(zmq.SUBSCRIBE, data)
        self._ask(socket, [confirmed])

    def unsubscribe(self, data: bytes) -> bool:
        """Take one subscription back; True when it was the last one of that filter."""
        socket = self._socket
        if socket is None or not self._filters[data]:
            return False
        self._filters[data] -= 1
        if self._filters[data]:
            return False
        del self._filters[data]
        socket.sock.setsockopt(zmq.UNSUBSCRIBE, data)
        self._reactor.check_after_turn(socket)
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
        self._tokens.clear()

    def _opened(self) -> Socket:
        if self._socket is None:
            assert self._reactor.context is not None
            sock: zmq.Socket[bytes] = self._reactor.context.socket(zmq.SUB)
            tune_local(sock, self._settings.message_bytes_max, receive_msgs=PUBLISH_MSGS)
            self._socket = Socket(self._reactor, sock, self._came)
            self._folder.connect(self._socket, self._file)
        return self._socket

    def _ask(self, socket: Socket, confirmed: list[Confirmed]) -> None:
        token = HANDSHAKE_LETTER + new_id()
        self._tokens[token] = confirmed
        socket.sock.setsockopt(zmq.SUBSCRIBE, token)
        self._reactor.check_after_turn(socket)
        if self._timer is None:
            self._timer = self._reactor.call_later(PATIENCE_S, self._impatient)

    def _impatient(self) -> None:
        """Nothing was answered for a while: ask again, for all who wait."""
        self._timer = None
        socket = self._socket
        if socket is None or not self._tokens:
            return
        waiting = [each for confirmed in self._tokens.values() for each in confirmed]
        for token in self._tokens:
            socket.sock.setsockopt(zmq.UNSUBSCRIBE, token)
        self._tokens.clear()
        self._tries += 1
        if self._tries % TOKENS == 0:
            self._folder.reconnect(socket, self._file)
        self._ask(socket, waiting)

    def _came(self, frames: list[bytes], _origin: str) -> None:
        if frames[0][:1] != HANDSHAKE_LETTER:
            self._receive(frames)
            return
        confirmed = self._tokens.get(frames[0])
        socket = self._socket
        opened = _answer(frames)
        if confirmed is None or socket is None or opened is None:
            return  # what is no answer changes nothing: it is asked for again when patience ends
        del self._tokens[frames[0]]
        socket.sock.setsockopt(zmq.UNSUBSCRIBE, frames[0])
        self._reactor.check_after_turn(socket)
        self._tries = 0
        if not self._tokens and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in confirmed:
            each(opened)


def _answer(frames: list[bytes]) -> Opened | None:
    """The answer to a token; None when it is none."""
    if len(frames) != 3:
        return None
    try:
        return _read_opened(frames[2]) if decode(frames[1]).kind == Kind.OPENED else None
    except (Malformed, msgspec.MsgspecError, UnicodeDecodeError):
        return None
