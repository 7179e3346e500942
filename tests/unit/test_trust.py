"""Who is at the other end of a local socket, and that everybody who dials one asks."""

import asyncio
import errno
import os
import socket
import stat
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from broker import trust
from broker.cli import address, diagnosis, exits
from broker.client import blocking
from broker.endpoints import parse
from broker.errors import LinkRefused
from broker.identity import NOBODY
from broker.oslo.service import asking
from broker.transport.link import Options
from broker.transport.zeromq import dialing
from broker.transport.zeromq.dialing import open_connection
from broker.wire.framing import Splitter, frame
from broker.wire.message import response
from broker.wire.payload import encode_json
from gateway.cluster import control
from tests.live.verbs import headgate
from tests.tables import for_each

OTHER = 12345


@pytest.fixture
def foreign(monkeypatch, request):
    """A folder that is somebody else's, below one where everybody may make one; sockets in it are, too."""

    def make(folder, mode=0o755):
        folder.parent.chmod(0o1777)
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(mode)
        if os.geteuid() == 0:
            os.chown(folder, OTHER, OTHER)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        return folder

    return make


@contextmanager
def listening(path, *, as_other=False, answering=False):
    """Somebody who lets everybody in and says the handshake byte; ``answering`` everything alike."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    if as_other:
        os.seteuid(OTHER)
    try:
        sock.listen()
    finally:
        if as_other:
            os.seteuid(0)
    heard = []

    def serve():
        while True:
            try:
                near, _ = sock.accept()
            except OSError:
                return
            with near:
                near.settimeout(0.2)
                try:
                    near.sendall(b"\0")
                    splitter = Splitter(1 << 20)
                    while data := near.recv(4096):
                        heard.append(data)
                        for asked in splitter.feed(data) if answering else ():
                            near.sendall(frame(response(asked, encode_json({"value": "1"}))))
                except OSError:
                    heard.append(b"")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join()


def test_ours_is_trusted_wherever_it_lies(rundir):
    rundir.chmod(0o1777)
    (rundir / "s").mkdir(mode=0o700)
    assert trust.folder_objection(str(rundir / "s")) == trust.folder_objection(str(rundir / "none")) == ""


def test_that_of_a_service_counts_where_only_root_or_we_can_have_put_it(rundir, foreign, monkeypatch):
    folder = str(foreign(rundir / "s"))
    assert f"saw the folder of uid {os.stat(folder).st_uid}" in trust.folder_objection(folder)
    monkeypatch.setenv(trust.TRUSTED_USERS, f"nobody-of-this-name, {os.stat(folder).st_uid}")
    assert trust.folder_objection(folder) == ""
    if os.geteuid() == 0:
        monkeypatch.delenv(trust.TRUSTED_USERS)
        rundir.chmod(0o755)
        assert trust.folder_objection(folder) == ""


def test_nobody_is_trusted_only_where_it_is_named(rundir, monkeypatch):
    (rundir / "s").mkdir(mode=0o755)
    lstat = os.lstat

    def nobodys(path):
        found = list(lstat(path))
        found[stat.ST_UID] = NOBODY
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", nobodys)
    monkeypatch.setattr(trust, "peer_uid", lambda _sock: NOBODY)
    with socket.socket(socket.AF_UNIX) as sock:
        asked = [
            lambda: trust.folder_objection(f"{rundir}/s"),
            lambda: trust.peer_objection(sock, f"{rundir}/s/local-0"),
        ]
        assert all(f"{trust.TRUSTED_USERS}={NOBODY}" in ask() for ask in asked)
        monkeypatch.setenv(trust.TRUSTED_USERS, str(NOBODY))
        assert [ask() for ask in asked] == ["", ""]


@for_each("mode", [0o707, 0o770, 0o775, 0o1777])
def test_one_that_others_may_write_to_is_not(rundir, mode):
    (rundir / "s").mkdir(exist_ok=True)
    (rundir / "s").chmod(mode)
    text = trust.socket_objection(f"{rundir}/s/local-0")
    assert f"saw mode {mode:04o}" in text
    assert f"chmod go-w {rundir}/s, or umask 022" in text


def test_a_link_is_not(rundir, tmp_path):
    (rundir / "s").symlink_to(tmp_path)
    assert "symbolic link" in trust.folder_objection(str(rundir / "s"))
    assert "symbolic link" in trust.folder_objection(f"{rundir}/s/")


def test_the_process_counts_too(rundir, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("optional: only root can listen as somebody else")
    path = rundir / "local-0"
    with listening(path, as_other=True) as heard, socket.socket(socket.AF_UNIX) as sock:
        with pytest.raises(trust.Untrusted, match=f"a process of uid {OTHER}"):
            trust.connect(sock, str(path))
        assert not any(heard)


def test_a_folder_that_came_when_another_had_been_looked_at(rundir, foreign):
    path = foreign(rundir / "s") / "local-0"
    with listening(path, as_other=os.geteuid() == 0), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        assert "saw a process of uid" in trust.peer_objection(sock, str(path))


@for_each("abstract", [False, True])
def test_whom_zmtp_has_connected_to_is_asked_where_no_key_proves_it(abstract, rundir, foreign, monkeypatch):
    path = foreign(rundir / "s") / "local-0"
    where = f"headgate-{path}" if abstract else path
    monkeypatch.setattr(trust, "socket_objection", lambda _path: "")  # it was another folder then

    async def dials():
        uri = f"ipc://@{where}" if abstract else f"ipc://{where}"
        with pytest.raises(LinkRefused, match=r"is not spoken to: .*saw a process of uid"):
            await dialing.dial(uri, Options(connect_timeout_s=5))
        with pytest.raises(LinkRefused, match=r"is not spoken to: .*saw a process of uid"):
            await open_connection(parse(uri), uri, None, b"w1", False)

    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        root = os.geteuid() == 0
        if root:
            os.seteuid(OTHER)
        try:
            sock.bind(f"ipc://@{where}" if abstract else f"ipc://{where}")
        finally:
            if root:
                os.seteuid(0)
        asyncio.run(dials())


def test_everybody_who_dials_asks(rundir, foreign):
    folder = foreign(rundir / "h")
    uri = f"local://{folder}/local-0"
    with listening(folder / "local-0") as heard:
        with pytest.raises(LinkRefused, match=r"is not spoken to: .*HEADGATE_TRUSTED_USERS") as caught:
            blocking.connect(uri, retries=0)
        assert caught.value.errno == errno.EACCES
        for verb in (("status",), ("rpc", "my.service", '{"password":"x"}'), ("doctor",), ("health",)):
            done = headgate(*verb, "--uri", uri)
            assert done.returncode not in (0, exits.OK)
            assert "HEADGATE_TRUSTED_USERS" in done.stdout + done.stderr, verb
        assert [found.level for found in diagnosis.zeromq(f"ipc://{folder}/local-0", curve=False)] == ["fail"]
        with pytest.raises(LinkRefused, match="not spoken to"):
            asyncio.run(dialing.dial(f"ipc://{folder}/local-0", Options()))
        with pytest.raises(control.NotUp), control.connect(folder / "local-0", 1.0):
            pass
        assert asking.statuses(str(folder)) == {}
        assert not any(heard)


def test_a_folder_that_is_not_trusted_hides_no_other(rundir, foreign, monkeypatch):
    system = rundir / "system"
    system.mkdir(mode=0o700)
    monkeypatch.setattr(address, "SYSTEM_RUNDIR", str(system))
    monkeypatch.setattr(address, "default_rundir", lambda: str(rundir / "own"))
    with listening(system / "local-0"), listening(foreign(rundir / "own") / "local-0"):
        if os.geteuid() == 0:
            assert address.default_socket() == f"{system}/local-0"
        assert trust.folder_objection(str(rundir / "own"))


def test_what_is_no_broker_ends_in_a_line(rundir):
    uri = f"local://{rundir}/local-0"
    with listening(rundir / "local-0", answering=True) as heard:
        for verb in ("status", "ping 0", "stats", "services", "attr get rank", "health", "trace x"):
            done = headgate(*verb.split(), "--timeout", "1", "--uri", uri)  # what escapes from it fails here
            assert len(done.stderr.splitlines()) <= 1, verb
        done = headgate("status", "--uri", uri)
        assert f"{uri}: an answer is none that a broker gives" in done.stderr
        assert done.returncode == exits.FAILED
    assert any(heard)


@for_each(
    ("mapping", "uid"),
    [
        ("         0          0 4294967295\n", None),
        ("0 1000 1\n", 65534),
        ("0 1000 1\n1 100000 65536\n", 65534),
        ("nonsense\n", None),
    ],
)
def test_the_overflow_uid_is_looked_up_where_the_map_is_not_full(monkeypatch, tmp_path, mapping, uid):
    files = {"/proc/self/uid_map": mapping, "/proc/sys/kernel/overflowuid": "65534\n"}
    for number, (name, text) in enumerate(files.items()):
        (tmp_path / str(number)).write_text(text)
        files[name] = str(tmp_path / str(number))

    def opened(name, encoding):
        return Path(files[name]).open(encoding=encoding)

    monkeypatch.setattr(trust, "open", opened, raising=False)
    assert trust.overflow_uid() == uid
