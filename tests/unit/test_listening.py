"""Sockets that listen: where, with which mode, and what is told where they cannot."""

import asyncio
import errno
import os
import socket
import stat

import pytest

from broker.endings import CONFIG, code_of
from broker.endpoints import Endpoint, parse
from broker.errors import ConfigError, NotReady
from broker.exposition import PageListener
from broker.listening import bind, contact, listen, listening_at
from broker.transport import handshaking


def test_contact_replaces_wildcards_and_interfaces_only():
    here = socket.gethostname()
    assert contact(Endpoint("tcp", "::", 5), Endpoint("tcp", "*")) == f"tcp://{here}:5"
    assert contact(Endpoint("tls", "0.0.0.0", 5), Endpoint("tls", "0.0.0.0")) == f"tls://{here}:5"
    assert contact(Endpoint("tcp", "127.0.0.1", 5), Endpoint("tcp", "localhost")) == "tcp://localhost:5"
    assert contact(Endpoint("tcp", "127.0.0.1", 5), Endpoint("tcp", "lo")) == "tcp://127.0.0.1:5"
    assert contact(Endpoint("ipc", "/run/x"), Endpoint("ipc", "/run/x")) == "ipc:///run/x"


def test_a_name_listens_on_all_interfaces_and_what_is_exact_stays_so(monkeypatch):
    """Debian's /etc/hosts has ``127.0.1.1 NAME``: where others never look for NAME. Nobody is asked."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    places = {
        "tcp://node0:1": Endpoint("tcp", "*", 1),
        "tcp://*:1": Endpoint("tcp", "*", 1),
        "tcp://localhost:1": Endpoint("tcp", "127.0.0.1", 1),
        "tcp://LocalHost:1": Endpoint("tcp", "127.0.0.1", 1),
        "tcp://10.0.0.256:1": Endpoint("tcp", "10.0.0.256", 1),
        "tcp://[fd77::1%lo]:1": Endpoint("tcp", "fd77::1%lo", 1),
        "tcp://127.0.1.1:1": Endpoint("tcp", "127.0.1.1", 1),
        "tcp://lo:1": Endpoint("tcp", "lo", 1),
    }
    assert {uri: listening_at(parse(uri), True, False) for uri in places} == places
    with pytest.raises(ConfigError, match="tcp://node0:1: plaintext off loopback"):
        listening_at(parse("tcp://node0:1"), False, False)


def test_every_transport_of_tcp_listens_at_the_interface_that_was_named():
    """TLS took the name of an interface for one of a host, and listened on all of them."""
    sock, address, _contact = handshaking.listen_tcp("tls://lo:*")
    with sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert address == f"tls://127.0.0.1:{sock.getsockname()[1]}"


def test_what_is_no_place_is_told_in_the_words_of_its_scheme():
    with pytest.raises(ConfigError, match="'tls://h:x': expected"):
        handshaking.listen_tcp("tls://h:x")


def test_a_file_in_the_way_is_for_a_person(rundir):
    (rundir / "file").write_text("precious")
    for place in (Endpoint("ipc", f"{rundir}/file"), Endpoint("local", f"{rundir}/file")):
        with pytest.raises(ConfigError, match="a file that is no socket is there") as caught:
            listen(place)
        assert (caught.value.errno, code_of(caught.value)) == (errno.EEXIST, CONFIG)
    assert (rundir / "file").read_text() == "precious"


def test_who_listens_is_named(rundir):
    for place in (Endpoint("unix", f"{rundir}/s"), Endpoint("tcp", "127.0.0.1")):
        sock, there = listen(place)
        with sock, pytest.raises(NotReady, match="Address already in use, by this very process"):
            listen(there)


def test_a_file_has_its_mode_before_somebody_can_connect(rundir, monkeypatch):
    seen = []
    chmod = os.chmod

    def change(path, mode):
        with socket.socket(socket.AF_UNIX) as early, pytest.raises(ConnectionRefusedError):
            early.connect(path)
        seen.append(mode)
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", change)
    with listen(Endpoint("local", f"{rundir}/s"), mode=0o640)[0]:
        assert (seen, stat.S_IMODE(os.stat(rundir / "s").st_mode)) == ([0o640], 0o640)


def test_what_is_bound_and_shared_has_one_port():
    first, place = bind(Endpoint("tcp", "127.0.0.1"), shared=True)
    with first, bind(place, shared=True)[0] as second:
        assert first.getsockname() == second.getsockname() == (place.host, place.port)


def test_figures_take_no_socket_from_who_listens_there(rundir):
    """asyncio deletes any socket that it finds where it is to listen."""

    async def serve(place):
        listener = PageListener("broker.metrics_listen", place, None)
        await listener.start()
        await listener.stop()

    with listen(Endpoint("unix", f"{rundir}/s"))[0]:
        with pytest.raises(
            NotReady, match=r"^broker.metrics_listen: cannot listen at .*, by this very process$"
        ):
            asyncio.run(serve(f"unix://{rundir}/s"))
        assert (rundir / "s").exists()
    asyncio.run(serve(f"unix://{rundir}/s"))
    assert stat.S_IMODE(os.stat(rundir / "s").st_mode) == 0o600
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        asyncio.run(serve("http://h"))
