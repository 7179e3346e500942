"""A dashboard behind a proxy that ends TLS below a path, with what OPERATIONS.md tells people to set: nginx, and what
others than it say of a WebSocket; Caddy and HAProxy where they are installed."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Sequence

import pytest

from gateway import selfsigned
from tests.browser.test_prefix import ASK
from tests.conftest import OPTIONAL
from tests.live.gateways import gateway_process
from tests.live.pages import ROOT, blocks
from tests.live.ports import free_port

pytestmark = pytest.mark.patient
START_S = 20.0
LISTENER = "127.0.0.1:8280"
USERS = """
[[users]]
name = "bob"
userid = 1002
roles = ["user"]
[[rules]]
roles = ["user"]
prefixes = [""]
"""
ORIGIN = "https://gate.example.org"
LOG_IN = """async (token) => {
    const headers = {'Content-Type': 'application/json'};
    return (await fetch('v1/login', {method: 'POST', headers, body: JSON.stringify({token})})).status;
}"""
SERVER = """
daemon off;
pid nginx.pid;
error_log error.log;
events {}
http {
    map $http_upgrade $said { websocket %s; default https; }
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    server { listen 127.0.0.1:%d ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem; %s }
}
"""


def told(kind: str, holding: str) -> str:
    """The block of OPERATIONS.md."""
    (found,) = [
        text
        for language, text in blocks(ROOT / "deploy/OPERATIONS.md")
        if language == kind and holding in text
    ]
    return found


def reachable(port: int) -> None:
    """Wait until somebody listens there."""
    until = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), START_S).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until, f"nobody listens at {port}"
            time.sleep(0.02)


def nginx(folder, port: int, listener: str, said: str) -> Sequence[object]:
    """It passes on to ``listener``, as ``X-Forwarded-Proto`` of a WebSocket ``said``."""
    location = told("nginx", "proxy_pass").replace(LISTENER, listener)
    if said != "https":
        location = location.replace("$scheme", "$said")
    (folder / "nginx.conf").write_text(SERVER % (said, port, location))
    return ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", "error.log"]


def caddy(folder, port: int, listener: str, _said: str) -> Sequence[object]:
    site = f"https://localhost:{port} {{\n    tls cert.pem key.pem"
    block = told("caddyfile", "reverse_proxy").replace("gate.example.org {", site).replace(LISTENER, listener)
    (folder / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https off\n}}\n{block}")
    return ["caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


def haproxy(folder, port: int, listener: str, _said: str) -> Sequence[object]:
    (folder / "both.pem").write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    block = told("haproxy", "frontend").replace("bind :443", f"bind 127.0.0.1:{port}")
    block = block.replace("/etc/haproxy/gate.example.org.pem", str(folder / "both.pem"))
    (folder / "haproxy.cfg").write_text(block.replace(LISTENER, listener))
    return ["haproxy", "-db", "-f", folder / "haproxy.cfg"]


@contextlib.contextmanager
def proxy(kind, folder, port: int, listener: str, said: str):
    """A proxy of that kind with a certificate of its own."""
    if shutil.which(kind.__name__) is None:
        pytest.skip(f"{OPTIONAL} {kind.__name__} is not here")
    selfsigned.save(selfsigned.make(["localhost"], now=time.time()), folder)
    words = kind(folder, port, listener, said)
    environ = {**os.environ, "HOME": str(folder)}
    with subprocess.Popen(words, cwd=folder, env=environ) as process:
        try:
            reachable(port)
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("kind", "said"),
    [(nginx, "https"), (nginx, "wss"), (caddy, ""), (haproxy, "")],
    ids=["nginx", "as Traefik", "caddy", "haproxy"],
)
def test_the_page_behind_tls_that_ends_at_a_proxy(browser, four, rundir, kind, said):
    port, ours = free_port(), f"127.0.0.1:{free_port()}"
    settings = (
        told("toml", "trusted_proxies").replace(LISTENER, ours).replace(ORIGIN, f"https://localhost:{port}")
    )
    assert tomllib.loads(settings)["gateway"] == {"prefix": "/headgate"}
    with (
        gateway_process(rundir, four, settings.replace("[gateway]", "", 1), users=USERS) as gateway,
        proxy(kind, rundir, port, ours, said),
    ):
        url = f"https://localhost:{port}/headgate"
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(f"{url}/")
        assert page.evaluate(LOG_IN, gateway.tokens["bob"]) == 200
        page.reload()
        page.wait_for_selector(".node >> nth=3")
        assert page.evaluate(ASK, url) == ["4", "0"]
        page.close()
