"""What somebody on the way can do with a TCP connection: keep what was said, and say it again."""

import contextlib
import socket
import threading
from collections.abc import Iterator

SILENCE_S = 0.7
"""How long nothing more has to come."""


class Recorder:
    """Passes one TCP connection on to ``target`` and keeps what the client said; as somebody on the way could."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.uri = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.said = bytearray()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._server.accept()
            with client, socket.create_connection(self._target) as broker:
                back = threading.Thread(target=self._pump, args=(broker, client, bytearray()), daemon=True)
                back.start()
                self._pump(client, broker, self.said)
                back.join(5)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
        for sock in (source, sink):  # which wakes the thread that reads the other way
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, whether somebody came or not."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def recorded(target: str) -> Iterator[Recorder]:
    recorder = Recorder(target)
    try:
        yield recorder
    finally:
        recorder.close()


def replayed(uri: str, said: bytes) -> bytes:
    """Say it again on a connection of one's own, with the pauses that a handshake needs; what came back."""
    host, _, port = uri.removeprefix("tcp://").rpartition(":")
    came = b""
    with socket.create_connection((host, int(port)), 5) as sock, contextlib.suppress(OSError):
        sock.settimeout(0.2)
        for at in (
            slice(0, 64),
            slice(64, 264),
            slice(264, None),
        ):  # greeting, HELLO, INITIATE and what follows
            sock.sendall(said[at])
            with contextlib.suppress(TimeoutError):
                came += sock.recv(1 << 16)
        sock.settimeout(SILENCE_S)
        while data := sock.recv(1 << 16):
            came += data
    return came
