"""What stands in the way of a start: a folder that is not there yet passes by itself, whoever listens in it."""

import asyncio

import pytest
import zmq

from broker.errors import NotReady
from broker.exposition import PageListener
from broker.oslo.reactor.binding import bind_local
from broker.transport.zeromq.binding import bind, listening_at
from gateway.settings.places import place_of
from gateway.web import listener
from tests.tables import for_each


def by_zeromq(path):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        bind(sock, listening_at(f"ipc://{path}", None, False))


def by_oslo(path):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        bind_local(sock, f"ipc://{path}")


def metrics(path):
    asyncio.run(PageListener("metrics_listen", f"unix://{path}", None).start())


@for_each(
    "place",
    [by_zeromq, by_oslo, metrics, lambda path: listener.bind(place_of(f"unix://{path}"))],
)
def test_a_folder_of_a_socket_may_come_later(tmp_path, place):
    with pytest.raises(NotReady, match="No such file"):
        place(tmp_path / "not-yet" / "socket")
