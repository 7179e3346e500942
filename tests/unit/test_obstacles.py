"""What may pass by itself, and what a person has to change."""

import asyncio
import errno
import os
import socket
import sqlite3
import ssl

import pytest
import zmq

from broker.endings import CONFIG, FAILED, TEMPFAIL, code_of
from broker.errors import HeadgateError, NotReady
from broker.exposition import PageListener
from broker.obstacles import obstacle
from broker.oslo.reactor.binding import bind_local
from broker.transport.link import Options
from broker.transport.unix import UnixTransport
from broker.transport.zeromq import ZeromqTransport
from gateway.settings.addresses import place_of
from gateway.web import listener
from tests.tables import for_each


def of_sqlite(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("said so")
    error.sqlite_errorname = name
    return error


@for_each(
    ("error", "absent", "code"),
    [
        (OSError(errno.EADDRNOTAVAIL, "x"), False, TEMPFAIL),
        (OSError(errno.EADDRINUSE, "x"), False, TEMPFAIL),
        (OSError(errno.ENOSPC, "x"), False, TEMPFAIL),
        (OSError(errno.EMFILE, "x"), False, TEMPFAIL),
        (socket.gaierror(socket.EAI_AGAIN, "x"), False, TEMPFAIL),
        (socket.gaierror(socket.EAI_NONAME, "x"), False, TEMPFAIL),
        (of_sqlite("SQLITE_FULL"), False, TEMPFAIL),
        (of_sqlite("SQLITE_BUSY_SNAPSHOT"), False, TEMPFAIL),
        (errno.EBUSY, False, TEMPFAIL),
        (FileNotFoundError(errno.ENOENT, "x"), True, TEMPFAIL),
        (FileNotFoundError(errno.ENOENT, "x"), False, CONFIG),
        (PermissionError(errno.EACCES, "x"), True, CONFIG),
        (of_sqlite("SQLITE_CORRUPT"), False, CONFIG),
        (ValueError("x"), True, CONFIG),
        (ssl.SSLError(errno.ESTALE, "keys do not match"), True, CONFIG),
    ],
)
def test_what_passes_by_itself(error, absent, code):
    assert code_of(obstacle("said", error, absent=absent)) == code


def test_other_errors_are_failures():
    assert code_of(HeadgateError("x")) == FAILED


def test_who_listens_is_named_and_a_file_in_the_way_is_for_a_person(rundir):
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as local:
        port.bind(("127.0.0.1", 0))
        port.listen()
        local.bind(str(rundir / "s"))
        local.listen()
        by_port = obstacle("taken", errno.EADDRINUSE, port=port.getsockname()[1])
        by_path = obstacle("taken", errno.EADDRINUSE, path=str(rundir / "s"))
    assert str(by_port) == str(by_path) == "taken, by this very process"
    (rundir / "file").write_text("")
    in_the_way = obstacle("taken", errno.EADDRINUSE, path=os.fspath(rundir / "file"))
    assert (str(in_the_way), code_of(in_the_way)) == ("taken", CONFIG)


def by_zeromq(path):
    asyncio.run(ZeromqTransport().listen(f"ipc://{path}", None, Options()))


def by_oslo(path):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        bind_local(sock, f"ipc://{path}")


def clients(path):
    asyncio.run(UnixTransport().listen(f"local://{path}", None, Options()))


def metrics(path):
    asyncio.run(PageListener("metrics_listen", f"unix://{path}", None).start())


def web(path):
    listener.bind(place_of(f"unix://{path}"))


@for_each("place", [by_zeromq, by_oslo, clients, metrics, web])
def test_a_folder_of_a_socket_may_come_later(tmp_path, place):
    with pytest.raises(NotReady, match="No such file"):
        place(tmp_path / "not-yet" / "socket")
