"""The real `flux` command against our brokers, and our `headgate` command against real ones. Needs FLUX_PREFIX."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop

HEADGATE = [sys.executable, "-m", "broker.cli.main"]
LIMIT_S = 30


class Tool:
    """One of the two commands, pointed at one instance."""

    def __init__(self, command: list[str], uri: str) -> None:
        self.command = command
        self.env = {**os.environ, "FLUX_URI": uri, "HEADGATE_URI": uri}

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*self.command, *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def start(self, *words: str) -> subprocess.Popen:
        return subprocess.Popen([*self.command, *words], env=self.env, stdout=subprocess.PIPE, text=True)


def heard(subscriber: subprocess.Popen, publish) -> str:
    """Publish until the subscriber, which tells nobody when it is ready, has what it waits for and leaves."""
    for _ in range(100):
        publish()
        try:
            return subscriber.communicate(timeout=0.2)[0]
        except subprocess.TimeoutExpired:
            continue
    subscriber.kill()
    raise AssertionError(f"nothing heard: {subscriber.communicate()}")


def traced(tracer: subprocess.Popen, cause, last: str) -> list[str]:
    """What a trace says until a line with ``last``; ``cause`` is done until it has begun to speak."""
    assert tracer.stdout is not None
    said: list[str] = []
    for _ in range(100):
        cause()
        if select.select([tracer.stdout], [], [], 0.2)[0]:
            break
    for line in tracer.stdout:
        said.append(line.rstrip())
        if re.search(last, line):
            break
    tracer.terminate()
    tracer.stdout.close()
    tracer.wait(LIMIT_S)
    return said


# ---------------------------------------------------------------- their command, our brokers


@pytest.fixture(scope="module")
def flux(flux_prefix: Path) -> Iterator[Tool]:
    """The real command in front of four of our brokers."""
    command = [*HEADGATE, "start", "--size", "4", "--wait"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("Ctrl-C"):
            break
    found = re.search(r"rank 0 +(\S+)", said)
    assert found, said
    yield Tool([str(flux_prefix / "bin" / "flux")], found[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()


def test_version(flux):
    assert re.search(r"^broker: +\t+0\.88\.0$", flux("version"), re.MULTILINE)


def test_getattr(flux):
    assert flux("getattr", "size") == "4\n"
    assert flux("getattr", "rank") == "0\n"
    assert "No such file or directory" in flux("getattr", "nope", code=1)


def test_lsattr(flux):
    listed = dict(line.split(None, 1) for line in flux("lsattr", "-v").splitlines() if len(line.split()) > 1)
    assert listed["size"].strip() == "4"
    assert listed["tbon.topo"].strip() == "kary:2"


@pytest.mark.parametrize("target", ["0", "3", "2!attr", "any!log", "broker"])
def test_ping(flux, target):
    lines = flux("ping", "--count", "2", "--interval", "0", target).splitlines()
    assert re.search(r"ping pad=0 seq=1 time=\d+\.\d+ ms \([0-9a-f]{8}!", lines[-1])


def test_ping_with_a_large_message(flux):
    assert "pad=300000" in flux("ping", "--count", "1", "--pad", "300000", "3")


def test_ping_of_nobody(flux):
    assert "nobody.ping: Function not implemented" in flux("ping", "--count", "1", "nobody", code=1)
    assert "No route to host" in flux("ping", "--count", "1", "99", code=1)


@pytest.mark.parametrize("flags", [[], ["--synchronous"]])
def test_event_pub_and_sub(flux, flags):
    subscriber = flux.start("event", "sub", "--count=1", "flux.test")
    said = heard(subscriber, lambda: flux("event", "pub", *flags, "flux.test.x", '{"a":1}'))
    assert said == 'flux.test.x\t{"a":1}\n'


def test_event_loopback(flux):
    flux("event", "pub", "--loopback", "flux.loop", '{"a":1}')


def test_dmesg_and_logger(flux):
    flux("logger", "--severity=notice", "the pump is on")
    for _ in range(50):  # log.append is not answered
        if "the pump is on" in (said := flux("dmesg")):
            break
        time.sleep(0.05)
    assert re.search(r"logger\.notice\[0\]: the pump is on$", said, re.MULTILINE)
    flux("dmesg", "--clear")
    assert "the pump is on" not in flux("dmesg")


def test_overlay_status(flux):
    lines = flux("overlay", "status").splitlines()
    assert [re.sub(r"\d+ \S+: ", "", line, count=1) for line in lines] == [
        "full",
        "├─ full",
        "│  └─ full",
        "└─ full",
    ]
    assert [int(re.findall(r"\d+", line)[0]) for line in lines] == [0, 1, 3, 2]


def test_overlay_parent(flux):
    assert flux("overlay", "parentof", "3") == "1\n"


def test_uptime(flux):
    assert re.search(r"run .*depth 0, +size 4", flux("uptime"))


def test_module_list(flux):
    names = {line.split()[0] for line in flux("module", "list").splitlines()[1:]}
    assert {"attr", "broker", "event", "log", "overlay"} <= names


def test_module_stats(flux):
    counts = json.loads(flux("module", "stats", "broker"))
    assert counts["rx"]["request"] > 0


def test_overlay_trace(flux):
    tracer = flux.start("overlay", "trace", "--type=request,response", "broker.ping")
    said = traced(tracer, lambda: flux("ping", "--count", "1", "3"), r"rx 1 < broker\.ping \[\d+\] success")
    assert re.fullmatch(r"\S+ tx 1 > broker\.ping \[\d+\]", said[0])


def test_overlay_trace_of_one_neighbour_with_payloads(flux):
    def ask():
        flux("ping", "--count", "1", "1")
        flux("ping", "--count", "1", "--pad", "3", "2")

    tracer = flux.start("overlay", "trace", "--full", "--rank=2", "broker.ping")
    said = traced(tracer, ask, r"rx 2 < ")
    assert " tx 2 > broker.ping [" in said[0]
    assert '"pad": "ppp"' in " ".join(said)


def test_module_trace(flux):
    tracer = flux.start("module", "trace", "--topic=attr.get", "attr", "log")
    said = traced(tracer, lambda: flux("getattr", "size"), r"attr tx < attr\.get \[\d+\] success")
    assert re.fullmatch(r"\S+ +attr rx > attr\.get \[\d+\]", said[0])


def test_module_debug(flux):
    asked = [["--setbit", "4"], ["--setbit", "0x80"], [], ["--clearbit", "4"], ["--set", "3"], ["--clear"]]
    assert [flux("module", "debug", *words, "overlay") for words in asked] == [
        "0x4\n", "0x84\n", "0x84\n", "0x80\n", "0x3\n", "0x0\n",
    ]  # fmt: skip
    assert "Function not implemented" in flux("module", "debug", "nobody", code=1)


def test_exec_is_refused_with_a_reason(flux):
    done = subprocess.run(
        [*flux.command, "exec", "-r", "0", "true"], env=flux.env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "remote execution is off" in done.stderr


# ---------------------------------------------------------------- our command, their brokers


@pytest.fixture(scope="module")
def headgate(flux_prefix: Path) -> Iterator[Tool]:
    """Our command in front of a real instance of two."""
    command = [
        str(flux_prefix / "bin" / "flux"),
        "start",
        "--test-size=2",
        "sh",
        "-c",
        "echo $FLUX_URI; exec cat",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    yield Tool(HEADGATE, process.stdout.readline().strip())
    process.stdin.close()
    assert process.wait(LIMIT_S) == 0
    process.stdout.close()


def test_headgate_status(headgate):
    seen = json.loads(headgate("status", "--json"))
    assert (seen["state"], seen["size"], seen["version"][:4], seen["tree"]["status"]) == (
        "run",
        2,
        "0.88",
        "full",
    )
    assert headgate("status").splitlines()[0].startswith("run for ")


def test_headgate_ping(headgate):
    assert re.match(r"1!broker\.ping seq=0 time=", headgate("ping", "-c", "1", "1"))
    assert "1!kvs.ping" in headgate("ping", "-c", "1", "1!kvs")


def test_headgate_ping_with_a_trace(headgate):
    """Their brokers do not tell of their own clients; all else is known."""
    *_, summary = map(
        json.loads, headgate("ping", "--trace", "--json", "-c", "2", "-i", "0", "1").splitlines()
    )
    assert [hop["where"] for hop in summary["hops"]] == ["here - rank 0", "0 - 1", "rank 1"]
    assert all(hop["both_ms"] is not None for hop in summary["hops"])


def test_headgate_rpc(headgate):
    assert json.loads(headgate("rpc", "attr.get", '{"name":"size"}'))["value"] == "2"
    assert "No service matching" in headgate("rpc", "nobody.home", code=1)


def test_headgate_pub_and_sub(headgate):
    said = heard(headgate.start("sub", "-c", "1", "h.t"), lambda: headgate("pub", "h.t.x", '{"a":1}'))
    assert re.fullmatch(r'\d+ h\.t\.x \{"a":1\}\n', said)


def test_headgate_attr_and_stats(headgate):
    assert headgate("attr", "get", "rank", "--rank", "1") == "1\n"
    assert re.search(r"^size +2", headgate("attr", "list"), re.MULTILINE)
    assert re.search(r"^rx\.request +\d+", headgate("stats"), re.MULTILINE)


def test_headgate_log(headgate):
    headgate("log", "--append", "from another house", "--severity", "err")
    assert re.search(r"\.err\[0\]: from another house$", headgate("log"), re.MULTILINE)


def test_headgate_doctor(headgate):
    assert re.search(r"^ok    the broker is flux-core 0\.88", headgate("doctor"), re.MULTILINE)


def test_both_commands_read_the_same_certificates(flux_prefix, rundir):
    subprocess.run([str(flux_prefix / "bin" / "flux"), "keygen", str(rundir / "theirs")], check=True)
    script = "import sys; from broker.transport import curve; print(curve.load(sys.argv[1]).public_key)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(rundir / "theirs")], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.strip()) == 40
