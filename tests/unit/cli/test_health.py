"""``headgate health``: what each answer, silence and absence means to a probe."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from broker.cli import health, main
from broker.cli.verbs import BUILT_IN
from tests.live.nfp import nfp_broker
from tests.live.ports import free_port
from tests.tables import for_each

NOWHERE = "local:///nowhere/at/all"


@contextlib.contextmanager
def server(answer: bytes, rundir=None):
    """A place that says ``answer`` to the first who comes; yields its URL, and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX if rundir else socket.AF_INET) as sock:
        sock.bind(f"{rundir}/u" if rundir else ("127.0.0.1", 0))
        sock.listen()
        sock.settimeout(20)

        def serve():
            peer, _ = sock.accept()
            with peer:
                peer.settimeout(5)
                asked.append(peer.recv(4096))
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix://{rundir}/u" if rundir else f"http://127.0.0.1:{sock.getsockname()[1]}", asked
        thread.join(20)
        assert not thread.is_alive()


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)


def said(capsys, *argv):
    """Exit code, stdout, stderr."""
    code = main.main(["health", *argv])
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- brokers


@for_each("argv", [[], ["--ready"], ["--live"]])
def test_a_broker_of_a_running_tree_is_well(broker, capsys, argv):
    code, out, err = said(capsys, *argv)
    assert (code, err) == (0, "")
    assert (
        out == f"live: it answers ({broker})\n"
        if "--live" in argv
        else out == f"ready: state run ({broker})\n"
    )


def test_json_has_the_verdict(broker, capsys):
    code, out, _ = said(capsys, "--json")
    assert (code, json.loads(out)) == (
        0, {"probe": "ready", "healthy": True, "at": broker, "text": "state run"}
    )  # fmt: skip
    code, out, err = said(capsys, "--json", "--live", "--uri", NOWHERE)
    told = json.loads(out)
    assert (code, told["probe"], told["healthy"], told["at"]) == (3, "live", False, NOWHERE)
    assert "No such file" in told["text"]
    assert err == ""


def test_nobody_there_is_3_and_at_once(capsys):
    began = time.monotonic()
    code, out, err = said(capsys, "--uri", NOWHERE, "--timeout", "60")
    assert (code, out) == (3, "")
    assert re.fullmatch(
        r"headgate health: not ready: .*No such file or directory \(local:///nowhere/at/all\)\n", err
    )
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("question", ["live", "ready"])
def test_silence_is_1_after_the_time_that_was_given(question, rundir, capsys):
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(f"{rundir}/s")
        frozen.listen()
        began = time.monotonic()
        code, _, err = said(capsys, f"--{question}", "--uri", f"local://{rundir}/s", "--timeout", "0.1")
        assert (code, "no answer within 0.1 s" in err) == (1, True)
        assert 0.1 <= time.monotonic() - began < 10


def test_who_refuses_us_lives_but_is_not_known_to_be_ready(rundir):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{rundir}/s")
        sock.listen()

        def refuse():
            for _ in range(2):
                peer, _ = sock.accept()
                peer.sendall(b"\x01")  # EPERM in place of the greeting
                peer.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        uri = f"local://{rundir}/s"
        live = asyncio.run(health.ask_broker(uri, "live", 5))
        ready = asyncio.run(health.ask_broker(uri, "ready", 5))
        thread.join(10)
        assert (live.code, ready.code) == (0, 1)
        assert "refuses us" in live.text


@for_each(
    "argv",
    [
        ["--live", "--ready"],
        ["--uri", "x", "--url", "http://x"],
        ["--timeout", "soon"],
        ["extra"],
    ],
)
def test_wrong_options_are_2(argv, capsys):
    with pytest.raises(SystemExit) as left:
        main.main(["health", *argv])
    assert left.value.code == 2
    assert "see headgate health --help" in capsys.readouterr().err


@for_each(
    "argv",
    [
        ["--timeout", "0"],
        ["--timeout", "nan"],
        ["--uri", "nonsense"],
        ["--url", "https://x"],
        ["--url", "unix://host/path"],
        ["--url", "http://x:port"],
        ["--url", "http://"],
        ["--url", "x"],
    ],
)
def test_what_makes_no_sense_is_2_in_one_line(argv, capsys):
    code, out, err = said(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert argv[0] in err


# ---------------------------------------------------------------- HTTP


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize(("argv", "path"), [(["--live"], b"/livez"), ([], b"/readyz")])
def test_the_usual_paths_are_asked(argv, path, unix, rundir, capsys):
    with server(http(200, b'{"status": "ok"}'), rundir if unix else None) as (url, asked):
        code, out, _ = said(capsys, *argv, "--url", url)
        assert (code, out.split(" (")[0].partition(": ")[2]) == (0, "200 ok")
        assert asked[0].startswith(b"GET %b HTTP/1.1\r\n" % path)


def test_a_path_that_is_given_is_asked(capsys):
    with server(http(200, b"fine\nand more")) as (url, asked):
        assert (
            said(capsys, "--url", f"{url}/behind/readyz/")[1] == f"ready: 200 fine ({url}/behind/readyz/)\n"
        )
        assert asked[0].startswith(b"GET /behind/readyz HTTP/1.1\r\n")


@for_each(
    ("answer", "reason"),
    [
        (http(503, b'{"status": "not joined", "reason": "upstream is away"}'), "503 not joined: upstream is away"),
        (http(404, b"only GET"), "404 only GET"),
        (http(500, b""), "500"),
        (http(302, b"[]"), "302 []"),
        (b"220 smtp.example\r\n", "no HTTP: BadStatusLine"),
        (b"", "Remote end closed connection without response"),
    ],
)  # fmt: skip
def test_every_other_answer_is_1_with_its_reason(answer, reason, capsys):
    with server(answer) as (url, _):
        code, out, err = said(capsys, "--url", url)
    assert (code, out) == (1, "")
    assert err == f"headgate health: not ready: {reason} ({url})\n"


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"], ids=["head", "body"]
)
def test_an_answer_that_never_ends_is_1_after_the_time_that_was_given(begin, capsys):
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def drip():
            peer, _ = sock.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(begin)
                for _ in range(200):
                    peer.sendall(b"x")
                    time.sleep(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        code, _out, err = said(capsys, "--url", url, "--timeout", "0.2")
        assert (code, time.monotonic() - began < 9) == (1, True)
        assert "no answer within 0.2 s" in err
        thread.join(20)
        assert not thread.is_alive()


def test_no_server_is_3_a_silent_one_1(rundir, capsys):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert said(capsys, "--url", url)[0] == 3  # bound, not listening
        sock.listen()
        code, _, err = said(capsys, "--url", url, "--timeout", "0.2")
        assert (code, "no answer within 0.2 s" in err) == (1, True)
    assert said(capsys, "--url", f"unix://{rundir}/none")[0] == 3


# ---------------------------------------------------------------- the wings


def test_a_broker_of_nfp_answers(rundir, capsys):
    port = free_port()
    file = rundir / "nfp.toml"
    file.write_text(f'[nfp]\nendpoint = "tcp://*:{port}"\nbase_dir = "{rundir}/nfp"\n')
    code, _, err = said(capsys, "--nfp", str(file))
    assert (code, "expected the key of the broker" in err) == (78, True)
    with nfp_broker(rundir, endpoint=f"tcp://127.0.0.1:{port}"):
        assert said(capsys, "--nfp", str(file), "--timeout", "10") == (
            0, f"ready: it answers, 2 services (tcp://127.0.0.1:{port})\n", ""
        )  # fmt: skip
        assert said(capsys, "--nfp", str(file), "--live", "--timeout", "10")[0] == 0
    assert said(capsys, "--nfp", str(file), "--timeout", "0.2")[0] == 1


# ---------------------------------------------------------------- what a probe may cost


def test_it_is_a_verb_that_loads_nothing_heavy(broker):
    assert "health" in BUILT_IN
    command = [sys.executable, "-X", "importtime", "-m", "broker.cli.main", "health"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HEADGATE_URI": broker})
    assert done.returncode == 0, done.stderr[-500:]
    loaded = set(re.findall(r"^import time:.*\| +([a-z_0-9]+)", done.stderr, re.MULTILINE))
    assert "asyncio" in loaded
    assert not loaded & {"typer", "rich", "aiohttp", "cryptography", "zmq", "http"}


def test_the_help_tells_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        health.main(["--help"])
    assert "Exit codes: 0 healthy, 1 not" in capsys.readouterr().out
