"""A plain TCP balancer on the loopback: connections go to some places in turn, past those that refuse."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

CHUNK = 1 << 16


class Steering:
    """Where connections go, for a test to change while a balancer runs."""

    def __init__(self, *places: tuple[str, int]) -> None:
        self.places = list(places)
        self.near: set[socket.socket] = set()

    def to(self, *places: tuple[str, int]) -> None:
        """New connections go there from now on; those that are there end."""
        self.places[:] = places
        for each in list(self.near):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def balancer(
    places: Sequence[tuple[str, int]] | Steering,
    idle_s: float | None = None,
    take_away: bytes = b"",
    port: int = 0,
) -> Iterator[int]:
    """Its port. It knows nothing of what passes; when one side ends, so does the other.

    With ``idle_s`` it cuts connections over which nothing passed for so long. ``take_away`` is a prefix that it takes
    from the path of requests, as a reverse proxy does; each has to come in one piece, as browsers send them.
    """
    steering = places if isinstance(places, Steering) else Steering(*places)
    with socket.create_server(("127.0.0.1", port)) as listening:
        taking = threading.Thread(target=_take, args=(listening, steering, idle_s, take_away), daemon=True)
        taking.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            taking.join(5)


def _take(listening: socket.socket, steering: Steering, idle_s: float | None, take_away: bytes) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return
        far = _reach(steering.places)
        if far is None:
            near.close()
            continue
        steering.near = {each for each in steering.near if each.fileno() != -1} | {near}
        passed = [time.monotonic()]
        for one, other, away in ((near, far, take_away), (far, near, b"")):
            threading.Thread(target=_pass_on, args=(one, other, passed, idle_s, away), daemon=True).start()


def _reach(places: list[tuple[str, int]]) -> socket.socket | None:
    for _ in range(len(places)):
        places.append(places.pop(0))
        with contextlib.suppress(OSError):
            return socket.create_connection(places[-1], timeout=5)
    return None


def _pass_on(
    one: socket.socket, other: socket.socket, passed: list[float], idle_s: float | None, away: bytes
) -> None:
    """Bytes of one direction; ``passed`` is when any passed last in either."""
    with contextlib.suppress(OSError):
        one.settimeout(idle_s)
        while True:
            try:
                data = one.recv(CHUNK)
            except TimeoutError:
                if idle_s is None or time.monotonic() - passed[0] < idle_s:
                    continue
                break
            if not data:
                break
            passed[0] = time.monotonic()
            if away and data.startswith((b"GET " + away + b"/", b"POST " + away + b"/")):
                data = data.replace(away, b"", 1)
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
