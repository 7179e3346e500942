"""The tree of docs/guides/deploy.md on two hosts, one of which has the /etc/hosts that Debian writes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.transport import curve
from tests.netlab import NetLab

pytestmark = pytest.mark.patient
WITHIN_S = 20.0
DEBIAN = """
cat >/etc/hosts <<E
127.0.0.1 localhost
127.0.1.1 n0.example n0
10.77.0.2 n1
E
"""
CONFIG = """
[broker]
rundir = "{folder}/run"
metrics_listen = "http://n0:8052"
metrics_insecure = true

[tree]
topology = "kary:2"
curve_cert = "broker{{rank}}.cert"
connect_timeout_s = 5.0

[[hosts]]
rank = 0
hostname = "n0"
address = "tcp://n0:8050"
public_key = "{keys[0]}"

[[hosts]]
rank = 1
hostname = "n1"
address = "tcp://n1:8050"
public_key = "{keys[1]}"

[[listen]]
uri = "tcp://n0:8051"
insecure = true
"""
REACHED = """
import socket, sys
for port in sys.argv[2:]:
    socket.create_connection((sys.argv[1], int(port)), 5).close()
"""


@pytest.fixture
def lab() -> Iterator[NetLab]:
    network = NetLab(2)
    try:
        network.__enter__()
    except (OSError, ValueError) as error:
        pytest.skip(f"optional: needs root or user namespaces, and iproute2: {error}")
    yield network
    network.close()


def headgate(*words: str) -> list[str]:
    return [sys.executable, "-m", "broker.cli.main", *words]


def test_it_comes_up_where_a_name_is_the_loopback_of_its_own_machine(lab, rundir: Path):
    certificates = [curve.generate(), curve.generate()]
    for rank, certificate in enumerate(certificates):
        curve.save(certificate, rundir / f"broker{rank}.cert")
    file = rundir / "broker.toml"
    file.write_text(CONFIG.format(folder=rundir, keys=[each.public_key for each in certificates]))
    assert lab.run(0, ["sh", "-ec", DEBIAN]).returncode == 0
    with (rundir / "log").open("wb") as log:
        for rank in (1, 0):
            lab.popen(rank, headgate("broker", "--config", str(file)), stdout=log, stderr=log)
    status, end = "", time.monotonic() + WITHIN_S
    while "(2 full)" not in status:
        assert time.monotonic() < end, f"{status}\n{(rundir / 'log').read_text()}"
        asked = headgate("status", "--uri", f"local://{rundir}/run/local-0")
        status = lab.run(0, asked, stdout=subprocess.PIPE, text=True).stdout
    assert lab.run(1, [sys.executable, "-c", REACHED, lab.ip(0), "8050", "8051", "8052"]).returncode == 0
    seen = lab.run(0, headgate("doctor", "--config", str(file)), stdout=subprocess.PIPE, text=True)
    assert (
        "rank 0 listens on all interfaces, its children dial tcp://n0:8050, which is 127.0.1.1 here"
        in seen.stdout
    )
