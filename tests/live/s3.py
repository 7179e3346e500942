"""A server that speaks S3, on loopback, with the faults that the real one has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class S3:
    """What a test says to the server, and what the server saw.

    Attributes:
        refuse: so many of the next requests that write are answered 503 (SlowDown); -1: all.
        hang_s: so long the next request that writes is not answered.
        on_put: called before each request that writes is served.
        requests: method and path of each.
    """

    def __init__(self, app: Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]) -> None:
        self._app = app
        self.refuse = 0
        self.hang_s = 0.0
        self.on_put: Callable[[], None] | None = None
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def __call__(self, environment: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        """WSGI."""
        method = environment["REQUEST_METHOD"]
        self.requests.append((method, environment["PATH_INFO"]))
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
        return self._app(environment, respond)

    def place(self, folder: str) -> str:
        """The URL of a folder in the bucket ``journals``."""
        return f"s3://test:test@journals/{folder}?region=us-east-1&scheme=http&endpoint_override={self.url}"


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
