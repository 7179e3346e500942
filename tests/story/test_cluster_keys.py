"""What ``headgate cluster init`` writes is enough: a broker and a gateway that meet over TCP with CURVE."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from broker.transport import curve
from gateway.cluster.files import write
from gateway.cluster.shape import Shape
from tests.live.brokers import eventually
from tests.live.ports import free_ports

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]

HEADGATE = [sys.executable, "-m", "broker.cli.main"]


class Pair:
    """A broker and a gateway in front of it, from one folder of keys."""

    def __init__(self, rundir: Path) -> None:
        self.keys = rundir / "keys"
        port, client_port, self.web = free_ports(3)
        shape = Shape("t", 1, port=port, client_port=client_port, host_pattern="localhost")
        self.token = write(shape, self.keys).token
        self.rundir = rundir
        self.processes: list[subprocess.Popen] = []

    def start(self, name: str, *words: str) -> subprocess.Popen:
        environ = {**os.environ, "HOME": str(self.rundir), "XDG_STATE_HOME": str(self.rundir / "state")}
        with open(self.rundir / f"{name}.log", "ab") as log:
            process = subprocess.Popen([*HEADGATE, name, *words], stdout=log, stderr=log, env=environ)
        self.processes.append(process)
        return process

    def broker(self) -> subprocess.Popen:
        config = ("--config", str(self.keys / "broker.toml"))
        return self.start("broker", *config, "--set", f"broker.rundir={self.rundir}/run")

    def gateway(self) -> subprocess.Popen:
        listen = ("--listen", f"http://127.0.0.1:{self.web}")
        return self.start("gateway", "--config", str(self.keys / "gateway.toml"), *listen)

    def log(self, name: str) -> str:
        return (self.rundir / f"{name}.log").read_text()

    def pings(self) -> bool:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.web}/v1/rpc/broker.ping"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, b'{"seq": 7}', headers), timeout=5
            ) as answer:
                return json.load(answer)["seq"] == 7
        except OSError:
            return False

    def end(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            finally:
                process.kill()


@pytest.fixture
def pair(rundir):
    made = Pair(rundir)
    yield made
    made.end()


@pytest.mark.patient
def test_a_gateway_elsewhere_reaches_rank_0_by_its_key(pair):
    pair.gateway()
    pair.broker()
    eventually(pair.pings, True, 30)
    assert "upstream: joined tcp://localhost:" in pair.log("gateway")


@pytest.mark.patient
def test_a_key_that_is_not_listed_is_not_let_in_and_the_right_one_is_once_it_is_there(pair):
    """Files are read again at each attempt: no restart of the gateway."""
    certificate = pair.keys / "gateway.cert"
    right = certificate.read_bytes()
    curve.save(curve.generate(), certificate, replace=True)
    pair.broker()
    pair.gateway()
    eventually(lambda: "refused us: ZAP 400" in pair.log("gateway"), True, 30)
    eventually(lambda: "gateway listens" in pair.log("gateway"), True, 30)
    assert not pair.pings()
    assert "unknown CURVE key" in pair.log("broker")
    certificate.write_bytes(right)
    eventually(pair.pings, True, 60)


@pytest.mark.patient
def test_a_certificate_that_is_missing_is_told_at_the_start(pair):
    (pair.keys / "gateway.cert").unlink()
    assert pair.gateway().wait(20) == 75
    assert "gateway.cert: cannot read the certificate" in pair.log("gateway")
