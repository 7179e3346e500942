"""A plain TCP balancer: connections go to some places in turn, past those that refuse.

As a process: ``python -m tests.live.balancer PORT NAME=HOST:PORT …`` listens on the loopback, says so, and says of each
connection, before anything passes, from which port it came and to whom it goes: ``from 40404 to NAME``.
"""

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count

CHUNK = 1 << 16
READY = "the balancer listens"
LOOKS = 8
"""So many times nothing has passed before a connection is idle: a machine that stands still counts as one of them."""

Place = tuple[str, int]


class Steering:
    """Where connections go, for a test to change while a balancer runs."""

    def __init__(self, *places: Place) -> None:
        self.places = list(places)
        self.near: set[socket.socket] = set()

    def to(self, *places: Place) -> None:
        """New connections go there from now on; those that are there end."""
        self.places[:] = places
        for each in list(self.near):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def balancer(
    places: Sequence[Place] | Steering,
    idle_s: float | None = None,
    take_away: bytes = b"",
    port: int = 0,
    reach_s: float = 5.0,
    tell: Callable[[int, Place], None] = lambda _port, _place: None,
) -> Iterator[int]:
    """Its port. It knows nothing of what passes; when one side ends, so does the other.

    With ``idle_s`` it cuts connections over which nothing passed for so long. ``take_away`` is a prefix that it takes
    from the path of requests, as a reverse proxy does; each has to come in one piece, as browsers send them. A place
    that does not answer in ``reach_s`` is passed over. ``tell`` hears a client's port and where it goes.
    """
    steering = places if isinstance(places, Steering) else Steering(*places)
    turns = count()

    def serve(near: socket.socket) -> None:
        found = _reach(steering.places, next(turns), reach_s)
        if found is None:
            near.close()
            return
        far, place = found
        with contextlib.suppress(OSError):  # it has left
            tell(near.getpeername()[1], place)
        passed = [0]
        back = threading.Thread(target=_pass_on, args=(far, near, passed, idle_s, b""), daemon=True)
        back.start()
        _pass_on(near, far, passed, idle_s, take_away)

    with socket.create_server(("127.0.0.1", port)) as listening:
        taking = threading.Thread(target=_take, args=(listening, steering, serve), daemon=True)
        taking.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            taking.join(5)


def _take(listening: socket.socket, steering: Steering, serve: Callable[[socket.socket], None]) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return
        steering.near = {each for each in steering.near if each.fileno() != -1} | {near}
        threading.Thread(target=serve, args=(near,), daemon=True).start()


def _reach(places: list[Place], turn: int, reach_s: float) -> tuple[socket.socket, Place] | None:
    """A connection to the place whose turn it is, or the next one that takes it; and which that is."""
    first = turn % len(places)
    for place in places[first:] + places[:first]:
        with contextlib.suppress(OSError):
            return socket.create_connection(place, timeout=reach_s), place
    return None


def _pass_on(
    one: socket.socket, other: socket.socket, passed: list[int], idle_s: float | None, away: bytes
) -> None:
    """Bytes of one direction; ``passed`` is how many times any have passed in either."""
    idle, before = 0, 0
    with contextlib.suppress(OSError):
        one.settimeout(idle_s and idle_s / LOOKS)
        while idle < LOOKS:
            try:
                data = one.recv(CHUNK)
            except TimeoutError:
                idle, before = (idle + 1 if passed[0] == before else 0), passed[0]
                continue
            if not data:
                break
            passed[0] += 1
            if away and data.startswith((b"GET " + away + b"/", b"POST " + away + b"/")):
                data = data.replace(away, b"", 1)
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def main(words: Sequence[str]) -> int:
    """Balance until SIGTERM."""
    port, *named = words
    names: dict[Place, str] = {}
    for name, _, at in (each.partition("=") for each in named):
        host, _, number = at.rpartition(":")
        names[host, int(number)] = name
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # of all threads to come, too

    def tell(number: int, place: Place) -> None:
        print(f"from {number} to {names[place]}", flush=True)

    with balancer(list(names), port=int(port), reach_s=1.5, tell=tell):
        print(READY, flush=True)
        signal.sigwait([signal.SIGTERM])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
