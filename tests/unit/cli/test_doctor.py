"""The doctor: each way a connection can fail has its own finding, and a healthy one has none."""

import errno
import json
import os
import re
import socket
import threading
from functools import cache
from pathlib import Path

import msgspec
import pytest
import zmq

from broker.cli import diagnosis, exits
from broker.cli.diagnosis import reach
from broker.cli.main import main
from broker.errors import LinkRefused
from broker.settings import Settings
from broker.transport import curve
from broker.transport.zeromq import boxes

LOOKED_AT = cache(diagnosis.packages)
"""What costs most of a call and is the same at each."""


@pytest.fixture(autouse=True)
def looked_at_once(monkeypatch):
    monkeypatch.setattr(diagnosis, "packages", LOOKED_AT)


@pytest.fixture
def short_wait(monkeypatch):
    """For peers that never answer; one that does may be slow, on a machine that has other work."""
    monkeypatch.setattr(diagnosis, "WAIT_S", 0.3)


def found(capsys: pytest.CaptureFixture) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def failure(capsys: pytest.CaptureFixture) -> dict:
    bad = [finding for finding in found(capsys) if finding["level"] == "fail"]
    assert len(bad) == 1
    assert bad[0]["advice"]
    return bad[0]


def listening(path: Path, greeting: bytes | None) -> socket.socket:
    """A server that greets its first client with these bytes and hangs up; None: says nothing and stays."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        client, _ = server.accept()
        client.sendall(greeting)
        client.close()

    if greeting is not None:
        threading.Thread(target=serve, daemon=True).start()
    return server


def test_healthy(broker, capsys):
    assert main(["doctor", "--json"]) == 0
    assert {finding["level"] for finding in found(capsys)} <= {"ok", "warn"}


def test_findings_for_people(broker, capsys):
    assert main(["doctor", broker]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ok    connected to rank 0 of 3$", text, re.MULTILINE)
    assert re.search(r"^(ok  |warn)  a CURVE box of 64 KiB takes \d+ us", text, re.MULTILINE)


def test_no_socket_names_the_others(broker, capsys):
    assert main(["doctor", broker.replace("local-0", "local-9"), "--json"]) == exits.NO_CONNECTION
    assert broker in failure(capsys)["advice"]


def test_no_directory(capsys):
    assert main(["doctor", "local:///nowhere/at/all", "--json"]) == exits.NO_CONNECTION
    assert "does not exist" in failure(capsys)["advice"]


def test_nobody_listens(rundir, capsys):
    listening(rundir / "s", None).close()
    assert main(["doctor", f"local://{rundir}/s", "--json"]) == exits.NO_CONNECTION
    assert "nobody listens" in failure(capsys)["text"]


def test_no_socket_but_a_file(rundir, capsys):
    (rundir / "s").touch()
    assert main(["doctor", f"local://{rundir}/s", "--json"]) == exits.NO_CONNECTION
    assert "is no socket" in failure(capsys)["text"]


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"\x01", "Operation not permitted"),
        (b"\x0b", os.strerror(11)),
        (b"", "hung up"),
        (None, "no handshake byte"),
    ],
)
@pytest.mark.usefixtures("short_wait")
def test_greetings_that_are_none(greeting, said, rundir, capsys):
    with listening(rundir / "s", greeting):
        assert main(["doctor", f"local://{rundir}/s", "--json"]) == exits.NO_CONNECTION
    assert said in failure(capsys)["text"]


def test_guest_is_told_of_the_setting(rundir, capsys):
    with listening(rundir / "s", b"\x01"):
        main(["doctor", f"local://{rundir}/s", "--json"])
    advice = failure(capsys)["advice"]
    assert all(f"access.{name}" in advice for name in ("allow_guest_user", "allow_overflow_uid"))
    refused = LinkRefused("local:///x: refused", errno.EPERM)
    assert "access.allow_overflow_uid" in exits.lines_of(refused)[0]


def test_directory_that_others_may_write_to(rundir, capsys):
    rundir.chmod(0o777)
    main(["doctor", f"local://{rundir}/s", "--json"])
    assert any("0777" in finding["text"] for finding in found(capsys) if finding["level"] == "warn")


def test_unknown_scheme(capsys):
    assert main(["doctor", "smoke://signals", "--json"]) == exits.NO_CONNECTION
    assert "smoke" in failure(capsys)["text"]


def test_slow_box_is_a_warning(monkeypatch, capsys):
    monkeypatch.setattr(boxes, "speed", lambda: 1169.0)
    assert main(["doctor", "local:///nowhere/x", "--json"]) == exits.NO_CONNECTION
    warning = [finding for finding in found(capsys) if finding["level"] == "warn"]
    assert "1169" in warning[0]["text"]
    assert "PyNaCl" in warning[0]["advice"]


def test_the_box_of_whoever_speaks_is_timed():
    finding = diagnosis.box_speed()
    assert finding.level == "ok"
    assert "libsodium of PyNaCl" in finding.text


# ---------------------------------------------------------------- ZeroMQ


def test_no_listener(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["doctor", f"tcp://127.0.0.1:{port}", "--json"]) == exits.NO_CONNECTION
    assert "nobody listens" in failure(capsys)["text"]


def test_name_without_address(capsys):
    assert main(["doctor", "tcp://no-such-host.invalid:1", "--json"]) == exits.NO_CONNECTION
    assert "no address" in failure(capsys)["text"]


def test_something_else_listens(rundir, capsys):
    with listening(rundir / "s", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64)):
        assert main(["doctor", f"ipc://{rundir}/s", "--json"]) == exits.NO_CONNECTION
    assert "no ZeroMQ greeting" in failure(capsys)["text"]


def test_they_speak_curve_and_we_do_not(broker, capsys):
    assert main(["doctor", tree_of(broker), "--json"]) == exits.NO_CONNECTION
    bad = failure(capsys)
    assert "they speak CURVE" in bad["text"]
    assert "HEADGATE_CERT" in bad["advice"]


def test_we_speak_curve_and_they_do_not(rundir, monkeypatch, capsys):
    certificate(rundir / "ours", monkeypatch, curve.generate().public_key)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(f"ipc://{rundir}/s")
        assert main(["doctor", f"ipc://{rundir}/s", "--json"]) == exits.NO_CONNECTION
    assert "they speak NULL" in failure(capsys)["text"]


def test_broker_that_does_not_know_our_key(broker, rundir, monkeypatch, capsys):
    key = curve.load_public(tree_of(broker, "rank-0.cert")).public_key
    ours = certificate(rundir / "ours", monkeypatch, key)
    assert main(["doctor", tree_of(broker), "--json"]) == exits.NO_CONNECTION
    bad = failure(capsys)
    assert "refused us" in bad["text"]
    assert ours.public_key in bad["advice"]


def test_broker_whose_key_is_another(broker, rundir, monkeypatch, capsys):
    certificate(rundir / "ours", monkeypatch, curve.generate().public_key)
    assert main(["doctor", tree_of(broker), "--json"]) == exits.NO_CONNECTION
    assert "key is not the one we expect" in failure(capsys)["text"]


def tree_of(uri: str, name: str = "tree-0") -> str:
    directory = os.path.dirname(uri.removeprefix("local://"))
    return f"{directory}/{name}" if name != "tree-0" else f"ipc://{directory}/{name}"


def certificate(path: Path, monkeypatch: pytest.MonkeyPatch, server_key: str) -> curve.Certificate:
    made = curve.generate()
    curve.save(made, path)
    monkeypatch.setenv("HEADGATE_CERT", str(path))
    monkeypatch.setenv("HEADGATE_SERVER_KEY", server_key)
    return made


# ---------------------------------------------------------------- --config


def configuration(rundir: Path, parent: str, parent_key: str, own_key: str) -> str:
    file = rundir / "b.toml"
    file.write_text(
        f'[broker]\nrundir = "{rundir}"\n[tree]\ncurve_cert = "own"\n'
        f'[[hosts]]\nrank = 0\naddress = "{parent}"\npublic_key = {json.dumps(parent_key)}\n'
        f'[[hosts]]\nrank = 1\naddress = "ipc://{rundir}/t"\npublic_key = {json.dumps(own_key)}\n'
    )
    return str(file)


def test_config_with_another_key_than_the_certificate(rundir, capsys):
    curve.save(curve.generate(), rundir / "own")
    file = configuration(
        rundir, f"ipc://{rundir}/p", curve.generate().public_key, curve.generate().public_key
    )
    assert main(["doctor", "--config", file, "--rank", "1", "--json"]) == exits.CONFIG
    assert "for rank 1" in failure(capsys)["text"]


def test_config_whose_certificate_everyone_may_read(rundir, capsys):
    own = curve.generate()
    curve.save(own, rundir / "own")
    (rundir / "own").chmod(0o644)
    file = configuration(rundir, f"ipc://{rundir}/p", curve.generate().public_key, own.public_key)
    assert main(["doctor", "--config", file, "--rank", "1", "--json"]) == exits.CONFIG
    assert "0644" in failure(capsys)["text"]


def reached(**own: str) -> list[str]:
    hosts = [
        {"rank": 0, "hostname": "node0", **own},
        {"rank": 1, "hostname": "node1", "address": "tcp://node1:1"},
    ]
    settings = msgspec.convert({"hosts": hosts, "tree": {"insecure": True}}, Settings)
    return [f"{found.level} {found.text}; {found.advice}" for found in reach(settings)]


def test_the_listening_side_sees_that_others_cannot_reach_it(monkeypatch):
    cannot = "fail .* listens at {}.*others cannot reach this address; hosts.bind"
    for_all = {
        ("tcp://node0:8050", "tcp://127.0.0.1:8050"): cannot.format("tcp://127.0.0.1:8050"),
        ("tcp://192.0.2.1:8050", "tcp://localhost:8050"): cannot.format("tcp://localhost:8050"),
        ("tcp://127.0.0.1:8050", None): cannot.format("tcp://127.0.0.1:8050"),
        (
            "tcp://node0.invalid:8050",
            None,
        ): "ok rank 0 listens on all interfaces, its children dial tcp://node0",
        ("tcp://192.0.2.1:8050", None): "ok rank 0 listens on 192.0.2.1",
        ("ipc:///run/tree", None): None,
    }
    for (address, bind), expected in for_all.items():
        told = reached(address=address, **({"bind": bind} if bind else {}))
        assert len(told) == (expected is not None), (address, bind)
        assert expected is None or re.match(expected, told[0]), told
    with socket.create_server(("127.0.1.1", 0)) as other:
        port = other.getsockname()[1]
        assert "at 127.0.1.1 alone: others cannot reach" in reached(address=f"tcp://node0:{port}")[0]


def test_config_reaches_its_parent(broker, rundir, capsys):
    """The handshake is made with a key the parent knows; no word follows, so the tree stays as it is."""
    directory = os.path.dirname(broker.removeprefix("local://"))
    own = curve.load(f"{directory}/rank-1.cert")
    curve.save(own, rundir / "own")
    parent_key = curve.load(f"{directory}/rank-0.cert").public_key
    file = configuration(rundir, tree_of(broker), parent_key, own.public_key)
    assert (
        main(["doctor", "--config", file, "--rank", "1", "--json"]) == exits.NO_CONNECTION
    )  # no socket of ours
    told = found(capsys)
    assert any("our parent, knows our key" in finding["text"] for finding in told if finding["level"] == "ok")
    assert main(["status", "--uri", broker, "--json"]) == 0
    assert found(capsys)[0]["tree"]["status"] == "full"


def doctor_at_rank_1(broker: str, rundir: Path, capsys: pytest.CaptureFixture, version: str) -> list[dict]:
    directory = os.path.dirname(broker.removeprefix("local://"))
    own = curve.load(f"{directory}/rank-1.cert")
    curve.save(own, rundir / "own")
    parent_key = curve.load(f"{directory}/rank-0.cert").public_key
    file = Path(configuration(rundir, tree_of(broker), parent_key, own.public_key))
    file.write_text(file.read_text().replace("[broker]\n", f'[broker]\nversion_announced = "{version}"\n'))
    assert main(["doctor", "--config", str(file), "--rank", "1", "--json"]) == exits.NO_CONNECTION
    return found(capsys)


def test_config_announces_another_version_than_its_parent(broker, rundir, capsys):
    told = doctor_at_rank_1(broker, rundir, capsys, "0.75.0")
    bad = next(finding for finding in told if finding["level"] == "fail")
    assert "rank 0 announces 0.88.0, we would announce 0.75.0" in bad["text"]
    assert "broker.version_announced" in bad["advice"]


def test_config_announces_the_version_of_its_parent(broker, rundir, capsys):
    told = doctor_at_rank_1(broker, rundir, capsys, "0.88.7")
    assert any("they agree" in finding["text"] for finding in told)
    assert main(["status", "--uri", broker, "--json"]) == 0
    assert found(capsys)[0]["tree"]["status"] == "full"  # asking sent nobody away
