"""A dashboard behind nginx that ends TLS below a path, with what OPERATIONS.md tells people to set, and what others
than nginx say of a WebSocket."""

import contextlib
import shutil
import socket
import subprocess
import time
import tomllib

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


@contextlib.contextmanager
def nginx(folder, port: int, listener: str, said: str):
    """It passes on to ``listener``, as ``X-Forwarded-Proto`` of a WebSocket ``said``."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip(f"{OPTIONAL} nginx is not here")
    selfsigned.save(selfsigned.make(["localhost"], now=time.time()), folder)
    location = told("nginx", "proxy_pass").replace(LISTENER, listener)
    if said != "https":
        location = location.replace("$scheme", "$said")
    (folder / "nginx.conf").write_text(SERVER % (said, port, location))
    with subprocess.Popen([program, "-p", folder, "-c", folder / "nginx.conf", "-e", "error.log"]) as process:
        try:
            reachable(port)
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize("said", ["https", "wss"], ids=["nginx", "as Traefik"])
def test_the_page_behind_tls_that_ends_at_nginx(browser, four, rundir, said):
    port, ours = free_port(), f"127.0.0.1:{free_port()}"
    settings = (
        told("toml", "trusted_proxies").replace(LISTENER, ours).replace(ORIGIN, f"https://localhost:{port}")
    )
    assert tomllib.loads(settings)["gateway"] == {"prefix": "/headgate"}
    with (
        gateway_process(rundir, four, settings.replace("[gateway]", "", 1), users=USERS) as gateway,
        nginx(rundir, port, ours, said),
    ):
        url = f"https://localhost:{port}/headgate"
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(f"{url}/")
        assert page.evaluate(LOG_IN, gateway.tokens["bob"]) == 200
        page.reload()
        page.wait_for_selector(".node >> nth=3")
        assert page.evaluate(ASK, url) == ["4", "0"]
        page.close()
