"""A server that speaks S3, on loopback, with the faults that the real one has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

FAULTS = "/-faults"
"""Where a server in a process of its own is told its faults."""
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class S3:
    """What a test says to the server, and what the server saw.

    Attributes:
        refuse: so many of the next requests that write are answered 503 (SlowDown); -1: all.
        hang_s: so long the next request that writes is not answered.
        kill: this process is killed when a file whose name has ``kill_at`` in it has been written.
        on_put: called before each request that writes is served.
        requests: method and path of each.
    """

    def __init__(self, app: Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]) -> None:
        self._app = app
        self.refuse = 0
        self.hang_s = 0.0
        self.kill = 0
        self.kill_at = ""
        self.on_put: Callable[[], None] | None = None
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def __call__(self, environment: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        """WSGI."""
        method = environment["REQUEST_METHOD"]
        path = environment["PATH_INFO"]
        if path == FAULTS:
            vars(self).update(json.loads(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))))
            respond("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.requests).encode()]
        self.requests.append((method, path))
        if method in ("PUT", "POST"):
            if self.on_put is not None:
                self.on_put()
            if self.refuse:
                self.refuse -= 1
                respond("503 Slow Down", [("Content-Type", "application/xml")])
                return [SLOW_DOWN]
            if self.hang_s:
                hang_s, self.hang_s = self.hang_s, 0.0
                time.sleep(hang_s)
        answer = self._app(environment, respond)
        if self.kill and method == "PUT" and self.kill_at in path:
            os.kill(self.kill, signal.SIGKILL)
            self.kill = 0
        return answer

    def place(self, folder: str) -> str:
        """The URL of a folder in the bucket ``journals``."""
        return place(self.url, folder)


def place(server: str, folder: str, key: str = "test:test@") -> str:
    """The URL of a folder in the bucket ``journals`` of a server."""
    return f"s3://{key}journals/{folder}?region=us-east-1&scheme=http&endpoint_override={server}"


class Apart:
    """A server in a process of its own: ``deltalake`` may hold the interpreter while it waits for an answer.

    Args:
        url: host and port.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def place(self, folder: str) -> str:
        """The URL of a folder in the bucket ``journals``."""
        return place(self.url, folder)

    def tell(self, **faults: object) -> list[list[str]]:
        """Set attributes of its ``S3``; returns method and path of the requests so far."""
        with urllib.request.urlopen(f"http://{self.url}{FAULTS}", json.dumps(faults).encode()) as answer:
            return json.loads(answer.read())


@contextmanager
def s3_apart() -> Iterator[Apart]:
    """Such a server, for the time of a block."""
    words = [sys.executable, "-m", "tests.live.s3"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Apart(process.stdout.readline().strip())
        finally:
            process.stdin.close()  # it ends with it, and with whoever started it
            process.wait(20)


@contextmanager
def s3_server() -> Iterator[S3]:
    """One with a bucket ``journals``, for the time of a block."""
    from moto.backends import get_backend
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_what: Any) -> None:
            pass

    served = S3(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, served, threaded=True, request_handler=Quiet)
    served.url = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="s3")
    thread.start()
    try:
        backend = get_backend("s3")["123456789012"]["aws"]
        backend.reset()
        backend.create_bucket("journals", "us-east-1")
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    with s3_server() as here:
        print(here.url, flush=True)
        sys.stdin.read()
