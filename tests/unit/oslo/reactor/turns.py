"""A reactor that a test turns by hand, and the peers of its sockets."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from time import monotonic, sleep

import zmq

from broker.oslo.reactor import Reactor

PATIENCE_S = 40.0


class Broken:
    """Raises whatever it is shown."""

    def tap(self, frames: object) -> None:
        raise OSError("no disk")


class Hand:
    """A reactor in the test's own thread; what it reports is kept, and has to be taken out."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self.reactor = Reactor(say=lambda level, text, values: self.said.append((level, text % values)))
        self.reactor.open()
        self.peers = zmq.Context()
        self.socks: list[zmq.Socket[bytes]] = []

    def until(self, true: Callable[[], object]) -> None:
        """Turn until ``true()``; the loop is kept from sleeping longer than a moment."""
        deadline = monotonic() + PATIENCE_S
        while not true():
            assert monotonic() < deadline, "it did not become true in time"
            self.turn()

    def turn(self, patience_s: float = 0.01) -> None:
        """One turn that takes little time even when nothing happens."""
        alarm = self.reactor.call_later(patience_s, lambda: None)
        self.reactor.turn()
        alarm.cancel()

    def sock(self, kind: int, **options: int) -> zmq.Socket[bytes]:
        """A socket of the reactor; options by name."""
        return self._kept(self.reactor.context.socket(kind), options)

    def peer(self, kind: int, to: str = "", **options: int) -> zmq.Socket[bytes]:
        """A socket of somebody else, connected to ``to``."""
        sock = self._kept(self.peers.socket(kind), options)
        if to:
            sock.connect(to)
        return sock

    def bound(self, kind: int, **options: int) -> tuple[zmq.Socket[bytes], str]:
        """A socket of the reactor at a loopback port, and where that is."""
        sock = self.sock(kind, **options)
        sock.bind("tcp://127.0.0.1:*")
        return sock, sock.get_string(zmq.LAST_ENDPOINT)

    def _kept(self, sock: zmq.Socket[bytes], options: dict[str, int]) -> zmq.Socket[bytes]:
        for name, value in {"LINGER": 0, **options}.items():
            sock.set(getattr(zmq, name), value)
        self.socks.append(sock)  # or it would be collected, with a warning, where a test forgets about it
        return sock

    def taken_errors(self) -> list[str]:
        errors = [text for level, text in self.said if level >= logging.ERROR]
        self.said = [each for each in self.said if each[0] < logging.ERROR]
        return errors


@contextlib.contextmanager
def by_hand() -> Iterator[Hand]:
    """A reactor that is closed at the end, with everything that was opened for it; it must have reported no error."""
    hand = Hand()
    try:
        yield hand
    finally:
        for sock in hand.socks:
            sock.close(0)
        hand.peers.destroy(0)
        hand.reactor.close()
    assert hand.taken_errors() == []


@contextlib.contextmanager
def disconnects(sock: zmq.Socket[bytes]) -> Iterator[Callable[[], None]]:
    """Gives what waits until a peer of ``sock`` has gone, without ``sock`` itself having taken notice."""
    events = sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def wait() -> None:
        assert events.poll(1000 * PATIENCE_S), "nobody went"
        events.recv_multipart()
        sleep(0.005)  # within sends libzmq looks for news once in a millisecond or so

    try:
        yield wait
    finally:
        sock.disable_monitor()
        events.close(0)


def received(messages: list[list[bytes]]) -> Callable[[list[bytes], str], None]:
    """A receiver that keeps the frames."""
    return lambda frames, _origin: messages.append(frames)
