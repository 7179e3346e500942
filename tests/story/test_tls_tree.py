"""A tree of three over TLS, as processes: what people configure, run and look at."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.live.certificates import TlsFiles

HEADGATE = [sys.executable, "-m", "broker.cli.main"]
PATIENCE_S = 30.0
pytestmark = [pytest.mark.story, pytest.mark.patient, pytest.mark.timeout(120)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Site:
    """Certificates and one configuration for three ranks, a listener for clients at rank 0, the journal on."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = TlsFiles(folder)
        for rank in range(3):
            self.authority.options(f"node-{rank}")
        self.client = self.authority.options("ada")
        self.port = free_port()
        hosts = "".join(
            f'[[hosts]]\nrank = {rank}\naddress = "tls://127.0.0.1:{free_port()}"\npublic_key = "node-{rank}"\n'
            for rank in range(3)
        )
        self.config = folder / "broker.toml"
        self.config.write_text(
            f'[broker]\nrundir = "{folder}/run"\n[tree]\noptions = {{ cert = "node-{{rank}}.pem", ca = "ca.pem" }}\n'
            f'{hosts}[[listen]]\nuri = "tls://127.0.0.1:{self.port}"\n'
            'options = { cert = "node-0.pem", ca = "ca.pem" }\n'
            f'[[clients]]\npublic_key = "ada"\nuserid = {os.getuid()}\nroles = ["owner"]\n'
            f'[journal]\nenabled = true\ndirectory = "{folder}/journal"\n'
        )
        self.processes = []

    def headgate(self, *words, **environ):
        return subprocess.run(
            [*HEADGATE, *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, **environ},
        )

    def over_tls(self, *words):
        options = " ".join(f"{name}={value}" for name, value in self.client.items())
        return self.headgate(*words, "--uri", f"tls://127.0.0.1:{self.port}", HEADGATE_OPTIONS=options)

    def start(self, *words):
        process = subprocess.Popen([*HEADGATE, *words], stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "it did not become so in time"
            assert all(process.poll() is None for process in self.processes), "a process has ended"
            time.sleep(0.05)

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("tree"))
    try:
        for rank in range(3):  # clients come to rank 0
            config = made.config
            if rank:
                config = made.folder / f"rank-{rank}.toml"
                config.write_text(re.sub(r"(?s)\[\[listen\]\].*(?=\[journal\])", "", made.config.read_text()))
            made.start("broker", "--config", str(config), "--rank", str(rank))
        made.until(
            lambda: (
                made.headgate("health", "--ready", "--uri", f"local://{made.folder}/run/local-0").returncode
                == 0
            )
        )
        yield made
    finally:
        made.stop()


def test_the_configuration_is_checked_and_shown(site):
    said = site.headgate("config", "check", str(site.config))
    assert said.returncode == 0, said.stderr
    shown = site.headgate("config", "show", str(site.config), "--brief").stdout
    assert 'ca = "' in shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("strict_rfc3 = true", "strict_rfc3: saw 'True', expected false: this transport has one form only"),
        ('dialect = "cmb1"', "dialect: saw 'cmb1', expected what this transport carries"),
        ("options = { cert = 7 }", "options.cert: saw 7, expected str"),
        ("", "options.ca: missing"),
        ('options = { cert = "a", ca = "b", colour = "red" }', "options.colour: saw an unknown key"),
    ],
)
def test_what_it_cannot_do_is_refused_with_its_line(tmp_path, text, line):
    file = tmp_path / "b.toml"
    file.write_text(f'[[listen]]\nuri = "tls://127.0.0.1:5"\n{text}\n')
    said = subprocess.run(
        [*HEADGATE, "config", "check", str(file)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 78
    assert line in said.stderr


def test_every_rank_is_reached_by_a_client_over_tls(site):
    for rank in range(3):
        said = site.over_tls("ping", "--count", "1", str(rank))
        assert said.returncode == 0, said.stderr
    status = json.loads(site.over_tls("status", "--json").stdout)
    assert status["tree"]["status"] == "full"


def test_who_has_no_certificate_of_ours_is_told_so(site, tmp_path):
    other = TlsFiles(tmp_path).options("ada")
    uri = f"tls://127.0.0.1:{site.port}"
    said = site.headgate(
        "ping", "--uri", uri, HEADGATE_OPTIONS=f"cert={other['cert']} ca={site.client['ca']}"
    )
    assert said.returncode != 0
    assert "Traceback" not in said.stderr
    said = site.headgate("ping", "--uri", uri)
    assert "cert" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_gateway_reaches_the_broker_over_tls(site):
    port = free_port()
    config = site.folder / "gateway.toml"
    config.write_text(
        f'[gateway]\nupstream = "tls://127.0.0.1:{site.port}"\nstatedir = "{site.folder}/state"\n'
        f'upstream_options = {{ cert = "ada.pem", ca = "ca.pem" }}\n[[listen]]\nurl = "http://127.0.0.1:{port}"\n'
    )
    site.start("gateway", "--config", str(config))

    def ready():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    site.until(ready)


def test_the_journal_names_the_transport(site):
    said = site.headgate("journal", "show", f"{site.folder}/journal", "--json")
    assert said.returncode == 0, said.stderr
    names = {json.loads(line).get("transport") for line in said.stdout.splitlines()}
    assert "tls" in names, names
