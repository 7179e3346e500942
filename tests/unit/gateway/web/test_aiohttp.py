"""What the gateway takes from inside aiohttp.

When one of these fails, a new aiohttp has changed: look at the file that the test names, and raise the upper bound in
pyproject.toml only when all of them are well.
"""

import asyncio
import inspect

from aiohttp import http_exceptions, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader

from gateway.websocket import handshake
from tests.tables import for_each

METHODS = {
    "gateway/websocket/handshake.py": [
        (web.RequestHandler, "set_parser", ["self", "parser", "data_received_cb"]),
        (web.RequestHandler, "connection_lost", ["self", "exc"]),
        (web.StreamResponse, "prepare", ["self", "request"]),
        (web.StreamResponse, "write_eof", ["self", "data"]),
    ],
    "gateway/web/connections.py": [
        (web.RequestHandler, "connection_made", ["self", "transport"]),
        (web.RequestHandler, "data_received", ["self", "data"]),
        (web.RequestHandler, "force_close", ["self"]),
        (web.RequestHandler, "finish_response", ["self", "request", "resp", "start_time"]),
        (web.RequestHandler, "handle_error", ["self", "request", "status", "exc", "message"]),
        (web.RequestHandler, "log_exception", ["self", "args", "kw"]),
        (StreamReader, "is_eof", ["self"]),
        (web.Response, "force_close", ["self"]),
    ],
}


@for_each(
    ("file", "owner", "name", "parameters"),
    [(file, *method) for file, methods in METHODS.items() for method in methods],
)
def test_a_method_is_there_and_takes_what_it_took(file, owner, name, parameters):
    found = getattr(owner, name, None)
    assert found is not None, f"aiohttp has no {owner.__name__}.{name}, which {file} uses"
    assert list(inspect.signature(found).parameters) == parameters, f"{file} uses {owner.__name__}.{name}"


@for_each(
    ("owner", "name"),
    [
        (BaseProtocol, "transport"),
        (BaseProtocol, "_loop"),
        (web.RequestHandler, "peername"),
        (web.RequestHandler, "_messages"),
    ],
)
def test_an_attribute_is_there(owner, name):
    assert hasattr(owner, name), f"aiohttp has no {owner.__name__}.{name}"


def test_what_its_parsers_raise():
    assert issubclass(http_exceptions.InvalidURLError, http_exceptions.HttpProcessingError)
    assert http_exceptions.BadStatusLine("x").message


async def test_a_parser_of_ours_gets_what_is_behind_the_request():
    protocol = web.RequestHandler(web.Server(None), loop=asyncio.get_running_loop())
    tail = handshake._Tail()
    protocol.set_parser(tail)
    assert protocol.transport is None, "nothing is closed with it"
    protocol.data_received(b"behind the request")
    assert bytes(tail.data) == b"behind the request"
    protocol.connection_lost(None)
